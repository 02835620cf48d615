-- restore: schedules an id for now that has a record and is in no list or set, and has the lane of one that is scheduled know it:
-- without that they would never be dispatched.
-- USES: epoch, guard, count, begin, rouse, state, topic, lane, kept, changes, fault
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
-- ARGV 5 '1' for an id with a key whose lane has another shard by an earlier number; else '0'
-- RETURNS {'ok', 1 when it was restored, 0 when it has a place or no record} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(length of the ready list): some milliseconds where that is 200,000 long
local id, lanes = ARGV[4], {}
local lane = LANES and lanes_from(9, 3) and lane_of(id)
local fault = fault_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], lane and KEYS[LANES], math.huge)
if fault ~= 'lost' and fault ~= 'unlaned' then return {'ok', 0} end
begin()
if lane then
  if ARGV[5] == '1' then shut_lane(lane) end
  if fault == 'unlaned' then
    takes_in(lanes, id, lane, redis.call('ZSCORE', KEYS[3], id) - FAR)
  else
    takes_back(lanes, {id}, now_ms)
    frees(lanes, {id})
  end
else
  redis.call('ZADD', KEYS[3], now_ms, id)
end
redis.pcall('HSETNX', KEYS[8], topic_of(id), 0)
local first = lane and rings(lanes) or now_ms
if first < math.huge then rouse(first) end
return {'ok', 1}
