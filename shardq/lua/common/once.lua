-- A command that its sender keeps until its effect is safe is sent again and again, and carried out at most once. Its
-- word is NONCE-MS: for MS after the last send, a mark in `seen` (ID, line feed, NONCE) is known. To that -AT may be
-- added, an instant in ms after which it is refused, unless it is known. The empty word is that of any other command.
-- once(seen, id, word, now_ms, steady_ms): looks for the mark of a command in the ZSET `seen`. Reads only.
-- RETURNS its mark, the ms for which that is known, and 'known' or 'late' if it is not to be carried out; nothing for
-- the empty word
local function once(seen, id, word, now_ms, steady_ms)
  if word == '' then return end
  local nonce, ms, at = string.match(word, '^(%d+)%-(%d+)%-?(%d*)$')
  -- what is no such word fails here, before anything is written
  local mark, known_ms = id .. '\n' .. nonce, ms + 0
  if tonumber(redis.call('ZSCORE', seen, mark) or 0) > steady_ms then return mark, known_ms, 'known' end
  return mark, known_ms, now_ms > (tonumber(at) or math.huge) and 'late' or nil
end
-- note_once(seen, mark, until_ms): makes the mark known until an instant of the steady clock. Uses begin: a server
-- without memory takes it, too.
-- RETURNS nothing
local function note_once(seen, mark, until_ms)
  begin()
  redis.call('ZADD', seen, until_ms, mark)
end
