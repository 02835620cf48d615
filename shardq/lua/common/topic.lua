-- topic_of(id): the part of an id before the slash.
-- RETURNS the topic; '' is the default topic
local function topic_of(id)
  local slash = string.find(id, '/', 1, true)
  return slash and string.sub(id, 1, slash - 1) or ''
end
-- A task with a key waits in `due` this far behind its due time, where no clock comes: its lane gives it. It is held if it is
-- due all the same.
local FAR = 4000000000000000
-- far(ms): the score there of an instant, as a word.
-- RETURNS the word
local function far(ms) return string.format('%.0f', FAR + ms) end
-- follows(id, other, same): tells if an id comes behind another by their bytes, as in a ZSET: `<` goes by the server's locale. So many bytes
-- in front are the same.
-- RETURNS true | false
local function follows(id, other, same)
  local first = same and same + 1 or 1
  for i = first, math.min(#id, #other) do
    local ours, theirs = string.byte(id, i), string.byte(other, i)
    if ours ~= theirs then return ours > theirs end
  end
  return #id > #other
end
-- is_topic(topic): tells if a topic can have this name: no push has stored an id of another one.
-- RETURNS true | false
local function is_topic(topic) return #topic <= 64 and not string.find(topic, '[^%w_.-]') end
