-- A ghost is an entry of a ready list that is passed over. Of each id as many entries as are counted for it are
-- ghosts, the oldest ones. The body counts in passed (id -> number) those that it dropped. Uses count.
local marks_of, counted, passed = {}, {}, {}
-- marked(ids, counts): finds the ghosts among the next entries of a list; `counts` has the count of each of these ids.
-- RETURNS a table: position -> true for a ghost
local function marked(ids, counts)
  local marks = {}
  for i, id in ipairs(ids) do
    local count, before = count_of(counts[i]), marks_of[id] or 0
    if before < count then marks[i], marks_of[id], counted[id] = true, before + 1, count end
  end
  return marks
end
-- forget_passed(key): takes what the body counted in passed off the counts in the HASH `key`. A removal comes before
-- it (begin), or a server without memory refuses it. Uses topic.
-- RETURNS a table: topic -> number of ghosts that are gone, for haunt
local function forget_passed(key)
  local gone, of_topic = {}, {}
  for id, number in pairs(passed) do
    local topic = topic_of(id)
    of_topic[topic] = (of_topic[topic] or 0) + number
    if number < counted[id] then redis.call('HSET', key, id, counted[id] - number) else gone[#gone + 1] = id end
  end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
  return of_topic
end
