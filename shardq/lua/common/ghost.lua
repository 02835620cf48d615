-- ghosts_with(key, id): counts one more stale entry of an id. Uses count.
-- RETURNS how many there are with it, for the HASH `key`
local function ghosts_with(key, id) return math.max(0, count_of(redis.call('HGET', key, id))) + 1 end
