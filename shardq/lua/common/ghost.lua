-- ghosts_with(key, id): counts one more stale entry of an id. Uses count.
-- RETURNS how many there are with it, for the HASH `key`
local function ghosts_with(key, id) return math.max(0, count_of(redis.call('HGET', key, id))) + 1 end
-- haunt(topic, by): counts so many more ghosts of a topic, or fewer, in `meta`, KEYS[1]. What is refused is left out, so none
-- is taken off that is not there: the count is for people. Uses count.
-- RETURNS nothing
local function haunt(topic, by)
  local field = 'ghosts/' .. topic
  local before = math.max(0, count_of(redis.call('HGET', KEYS[1], field)))
  if before + by > 0 then
    redis.pcall('HSET', KEYS[1], field, string.format('%.0f', before + by))
  elseif before > 0 then
    redis.pcall('HDEL', KEYS[1], field)
  end
end
