-- die(id, reason): notes a task as dead, and counts it for its topic; `dead` is KEYS[6], `why` KEYS[7]. One that is dead
-- already is not counted again. Uses topic. A removal comes before it (begin); the body takes the id from where it was.
-- RETURNS nothing
local function die(id, reason)
  local added = redis.call('ZADD', KEYS[6], now_ms, id)
  redis.call('HSET', KEYS[7], id, reason)
  if added == 1 then redis.pcall('HINCRBY', KEYS[1], 'died/' .. topic_of(id), 1) end
end
