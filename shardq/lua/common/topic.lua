-- topic_of(id): the part of an id before the slash.
-- RETURNS the topic; '' is the default topic
local function topic_of(id)
  local slash = string.find(id, '/', 1, true)
  return slash and string.sub(id, 1, slash - 1) or ''
end
