-- topic_of(id): the part of an id before the slash.
-- RETURNS the topic; '' is the default topic
local function topic_of(id)
  local slash = string.find(id, '/', 1, true)
  return slash and string.sub(id, 1, slash - 1) or ''
end
-- is_topic(topic): tells if a topic can have this name: no push has stored an id of another one.
-- RETURNS true | false
local function is_topic(topic) return #topic <= 64 and not string.find(topic, '[^%w_.-]') end
