-- cancel: removes a task that nobody holds.
-- USES: epoch, guard, count, steady, begin, once, rouse, state, topic, ghost, lane, kept, changes, lease, record, nonce, ends
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 ghost HASH
-- KEYS 9 moved HASH
-- KEYS 10 seen ZSET
-- KEYS 11 keys ZSET, where the engine has keys
-- KEYS 12 placed ZSET, where the engine has keys
-- KEYS 13 alarms ZSET, where the engine has keys
-- KEYS 14 rests ZSET, where the engine has keys
-- KEYS 15 holds HASH, where the engine has keys
-- KEYS 16 gates HASH, where the engine has keys
-- KEYS 17.. ends HASH, each slot of the ring, where the end is kept
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 id
-- ARGV 5 '', or NONCE-MS: it is carried out at most once, and known for MS by its nonce; to that -AT may be added, an
--         instant in ms after which it is refused, unless it is known
-- ARGV 6 '1' for a shard that the id may be in from an earlier number of shards only: that it is not here is not what
--         became of the command; else '0'. With slots of the ring FLAG:AGE:MOST, the rule by which ends are kept (keep_ends)
-- RETURNS {'ok', cancelled | running | gone | known | late | moving: on its way to another shard} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(log N)
local id = ARGV[4]
local steady_ms = steady(now_ms, meta[3], meta[4])
local mark, known_ms, past = once(KEYS[10], id, ARGV[5], now_ms, steady_ms)
local earlier, age_ms, most = string.match(ARGV[6], '^(%d):?(%d*):?(%d*)$')
local function answered(word)
  if mark and word ~= 'late' then note_once(KEYS[10], mark, steady_ms + known_ms) end
  return {'ok', word}
end
if past then return answered(past) end
local keyed, lanes = LANES and lanes_from(11, 3), {}
local lane = keyed and lane_of(id)
local state, score = state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[6])
if state == 'leased' then return answered('running') end
if state == 'gone' then
  if redis.call('HEXISTS', KEYS[9], id) == 1 then return {'ok', 'moving'} end
  return earlier == '0' and answered('gone') or {'ok', 'gone'}
end
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[7])
begin()
if state == 'ready' then
  redis.call('HSET', KEYS[8], id, ghosts_with(KEYS[8], id))
  haunt(topic_of(id), 1)
  if lane then frees(lanes, {id}) end
end
local told
if age_ms and age_ms ~= '' then
  local entry, record = redis.pcall('HGET', KEYS[5], id), redis.pcall('HGET', KEYS[2], id)
  local failures, lapses = lease_of(type(entry) == 'string' and entry)
  if type(record) ~= 'string' then record = '' end
  local known, head = parts_of(record)
  local reason = state == 'dead' and redis.pcall('HGET', KEYS[7], id)
  if type(reason) ~= 'string' then reason = failures > 0 and known and head and type(head.e) == 'string' and head.e or '' end
  -- the last line of the last attempt, and of that the class of an exception
  local line = string.match((string.gsub(reason, '%s+$', '')), '[^\n\31]*$')
  local class = string.match(line, '^([%a_][%w_.]*):') or string.match(line, '^[%a_][%w_.]*$') or ''
  if not string.match('.' .. class, '%.%u[%w_]*$') then class = '' end
  told = string.format('%.0f:c:%d:%d:::', now_ms, failures, lapses) .. pushed_of(record) .. ':' .. string.sub(class, -64)
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
if not lane or unrevoked({id})[1] then redis.call('HDEL', KEYS[5], id) end
if told then keep_ends(tonumber(age_ms), tonumber(most), {id, told}) end
local first = keyed and rings(lanes) or math.huge
if first < math.huge then rouse(first) end
return answered('cancelled')
