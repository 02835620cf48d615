-- reschedule: gives a task that nobody holds another due time.
-- USES: epoch, guard, count, steady, begin, once, instant, rouse, state, topic, ghost, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 dead ZSET
-- KEYS 6 ghost HASH
-- KEYS 7 moved HASH
-- KEYS 8 seen ZSET
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
-- ARGV 6 '' or NONCE-MS or NONCE-MS-AT, as in cancel
-- ARGV 7 '1' for a shard that the id may be in from an earlier number of shards only, else '0', as in cancel
-- RETURNS {'ok', moved | running | dead | gone | known | late | moving: on its way to another shard} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(log N)
local id, at = ARGV[4], instant(ARGV[5])
local steady_ms = steady(now_ms, meta[3], meta[4])
local mark, known_ms, past = once(KEYS[8], id, ARGV[6], now_ms, steady_ms)
local function answered(word)
  if mark and word ~= 'late' then note_once(KEYS[8], mark, steady_ms + known_ms) end
  return {'ok', word}
end
if past then return answered(past) end
local keyed, lanes = LANES and lanes_from(9, 3), {}
local lane = keyed and lane_of(id)
local state, score = state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[5])
if state == 'leased' then return answered('running') end
if state == 'gone' then
  if redis.call('HEXISTS', KEYS[7], id) == 1 then return {'ok', 'moving'} end
  return ARGV[7] == '0' and answered('gone') or {'ok', 'gone'}
end
if state == 'dead' then return answered('dead') end
local ghosts = state == 'ready' and ghosts_with(KEYS[6], id)
if lane then
  if state == 'scheduled' then lets_go(lanes, id, lane, score) end
  takes_in(lanes, id, lane, at)
else
  redis.call('ZADD', KEYS[3], at, id)
end
if ghosts then
  local counted = redis.pcall('HSET', KEYS[6], id, ghosts)
  if type(counted) == 'table' then
    redis.call('ZREM', KEYS[3], id)
    if lane then lets_go(lanes, id, lane, FAR + at) end
    return counted
  end
  haunt(topic_of(id), 1)
  if lane then frees(lanes, {id}) end
end
local first = lane and rings(lanes) or at
if first < math.huge then rouse(first) end
return answered('moved')
