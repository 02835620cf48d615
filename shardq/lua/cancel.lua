-- cancel: removes a task that nobody holds.
-- USES: epoch, guard, count, begin, rouse, state, topic, ghost, lane
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 ghost HASH
-- KEYS 9 moved HASH
-- KEYS 10 keys ZSET, where the engine has keys
-- KEYS 11 placed ZSET, where the engine has keys
-- KEYS 12 alarms ZSET, where the engine has keys
-- KEYS 13 rests ZSET, where the engine has keys
-- KEYS 14 holds HASH, where the engine has keys
-- KEYS 15 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 id
-- RETURNS {'ok', cancelled | running | gone | moving: on its way to another shard} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(log N)
local id = ARGV[4]
local keyed, lanes = LANES and lanes_from(10, 3), {}
local lane = keyed and lane_of(id)
local state, score = state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[6])
if state == 'leased' then return {'ok', 'running'} end
if state == 'gone' then return {'ok', redis.call('HEXISTS', KEYS[9], id) == 1 and 'moving' or 'gone'} end
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[7])
begin()
if state == 'ready' then
  redis.call('HSET', KEYS[8], id, ghosts_with(KEYS[8], id))
  haunt(topic_of(id), 1)
  if lane then frees(lanes, {id}) end
end
-- the record next: without it the id is dropped wherever it still stands
redis.call('HDEL', KEYS[2], id)
if state == 'scheduled' then
  redis.call('ZREM', KEYS[3], id)
  if lane then lets_go(lanes, id, lane, score) end
elseif state == 'dead' then
  redis.call('ZREM', KEYS[6], id)
  redis.call('HDEL', KEYS[7], id)
end
redis.call('HDEL', KEYS[5], id)
local first = keyed and rings(lanes) or math.huge
if first < math.huge then rouse(first) end
return {'ok', 'cancelled'}
