-- The ends of tasks are in a ring of eight hashes, the last KEYS of a call where ends are kept: id to
-- 'INSTANT:KIND:FAILURES:LAPSES:HOLDER:TOOK:PUSHED:FAILURE', as README.md says. One slot at a time is filled. The field `ends` of meta
-- is its number, and the instants at which it and those before it were begun, the latest first.
local ENDS = #KEYS - 7
-- keep_ends(age_ms, most, words): writes ends. The ring turns, which drops the oldest slot, once a slot has `most`, or a seventh of
-- the age. The words: id, end, id, end, …; where they are more than the ring has room for, the last ones. What is refused is left
-- out, as the tasks have ended already.
-- RETURNS nothing
local function keep_ends(age_ms, most, words)
  local known = redis.pcall('HGET', KEYS[1], 'ends')
  local turn, begun = string.match(type(known) == 'string' and known or '', '^([0-7])(:[%d:]+)$')
  local began = tonumber(begun and string.match(begun, '%d+'))
  turn = tonumber(turn or 7)
  local i = math.max(1, #words - 16 * most + 1)
  while i < #words do
    local size = redis.pcall('HLEN', KEYS[ENDS + turn])
    if not began or now_ms - began >= age_ms / 7 or type(size) ~= 'number' or size >= most then
      turn, began, size = (turn + 1) % 8, now_ms, 0
      begun = ':' .. string.format('%.0f', now_ms) .. (begun or '')
      if select(2, string.gsub(begun, ':', '')) > 8 then begun = string.match(begun, '^(.*):') end
      redis.pcall('UNLINK', KEYS[ENDS + turn])
      redis.pcall('HSET', KEYS[1], 'ends', turn .. begun)
    end
    local last = math.min(#words, i + 2 * (most - size) - 1)
    redis.pcall('HSET', KEYS[ENDS + turn], unpack(words, i, last))
    if size == 0 then redis.pcall('PEXPIRE', KEYS[ENDS + turn], math.ceil(age_ms * 8 / 7)) end
    i = last + 1
  end
end
