-- restore: schedules an id for now that has a record and is in no list or set: without that it would never be dispatched.
-- USES: epoch, guard, count, begin, rouse, state, topic, lane
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 dead ZSET
-- KEYS 6 ghost HASH
-- KEYS 7 ready LIST, that of the id's topic
-- KEYS 8 topics HASH
-- KEYS 9 keys ZSET, where the engine has keys
-- KEYS 10 placed ZSET, where the engine has keys
-- KEYS 11 alarms ZSET, where the engine has keys
-- KEYS 12 rests ZSET, where the engine has keys
-- KEYS 13 holds HASH, where the engine has keys
-- KEYS 14 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 id
-- RETURNS {'ok', 1 when it was restored, 0 when it has a place or no record} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(length of the ready list): some milliseconds where that is 200,000 long
local id = ARGV[4]
if state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[5]) ~= 'ready' then return {'ok', 0} end
-- entries that are ghosts are passed over, and so no place
local ghosts = math.max(0, count_of(redis.call('HGET', KEYS[6], id)))
if #redis.call('LPOS', KEYS[7], id, 'COUNT', ghosts + 1) > ghosts then return {'ok', 0} end
local lanes = {}
local lane = LANES and lanes_from(9, 3) and lane_of(id)
begin()
if lane then
  enter_lane(id, lane, now_ms, true)
  free_places({id}, lanes)
else
  redis.call('ZADD', KEYS[3], now_ms, id)
end
redis.pcall('HSETNX', KEYS[8], topic_of(id), 0)
local first = lane and ring_all(lanes) or now_ms
if first < math.huge then rouse(first) end
return {'ok', 1}
