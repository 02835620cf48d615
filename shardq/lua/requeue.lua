-- requeue: schedules a dead task again, and counts its attempts from 0.
-- USES: epoch, guard, instant, begin, rouse, state, topic, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 moved HASH
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
-- ARGV 5 due, as in push
-- RETURNS {'ok', requeued | scheduled | ready | running | gone | moving: on its way to another shard} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(log N)
local id, at = ARGV[4], instant(ARGV[5])
local keyed, lanes = LANES and lanes_from(9, 3), {}
local lane = keyed and lane_of(id)
local state = state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[6])
if state == 'leased' then return {'ok', 'running'} end
if state == 'gone' and redis.call('HEXISTS', KEYS[8], id) == 1 then return {'ok', 'moving'} end
if state ~= 'dead' then return {'ok', state} end
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[7])
begin() -- it takes no more memory than it frees
if lane then takes_in(lanes, id, lane, at) else redis.call('ZADD', KEYS[3], at, id) end
redis.call('ZREM', KEYS[6], id)
redis.call('HDEL', KEYS[7], id)
if not lane or unrevoked({id})[1] then redis.call('HDEL', KEYS[5], id) end
local first = lane and rings(lanes) or at
if first < math.huge then rouse(first) end
return {'ok', 'requeued'}
