-- cancel_tag: looks at a page of the records of this shard, whatever their state, and removes the tasks with a tag that
-- nobody holds. A record stays in its place through all changes of state, so no task is missed.
-- USES: epoch, guard, count, begin, rouse, record, place, topic, ghost, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 ghost HASH
-- KEYS 9 keys ZSET, where the engine has keys
-- KEYS 10 placed ZSET, where the engine has keys
-- KEYS 11 alarms ZSET, where the engine has keys
-- KEYS 12 rests ZSET, where the engine has keys
-- KEYS 13 holds HASH, where the engine has keys
-- KEYS 14 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 where to go on: the answer's, '0' to begin
-- ARGV 5 tag
-- ARGV 6 about how many to look at, up to 1,000
-- RETURNS {'ok', where to go on, '0' at the end, looked at, bytes of records read, {id of a cancelled one, …}, {id of one
--         that is running, …}} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC one page; what is here from the first to the last is met at least once
-- COST O(n log N), and all the bytes of their records
local tag, cancelled, running = ARGV[5], {}, {}
local keyed, lanes = LANES and lanes_from(9, 3), {}
-- a key of the wrong type fails here, before anything is removed
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[7])
redis.call('HLEN', KEYS[8])
local function tagged(record)
  local first, high, low = string.byte(record, 1, 3)
  if not low or first % 16 < 8 then return false end
  -- most heads do not have these letters anywhere, and need not be unpacked
  if not string.find(string.sub(record, 4, 3 + high * 256 + low), tag, 1, true) then return false end
  local known, head = parts_of(record)
  if not known or not head or type(head.t) ~= 'table' then return false end
  for _, each in ipairs(head.t) do
    if each == tag then return true end
  end
  return false
end
local function cancel(ids)
  if #ids == 0 then return end
  local due, leased = redis.call('ZMSCORE', KEYS[3], unpack(ids)), redis.call('ZMSCORE', KEYS[4], unpack(ids))
  local dead, going, ready = redis.call('ZMSCORE', KEYS[6], unpack(ids)), {}, {}
  for i, id in ipairs(ids) do
    if leased[i] and not due[i] then
      running[#running + 1] = id
    else
      going[#going + 1], cancelled[#cancelled + 1] = id, id
      if not due[i] and not dead[i] then ready[#ready + 1] = id end
    end
  end
  if #going == 0 then return end
  begin()
  local made = {}
  for _, id in ipairs(ready) do
    local topic = topic_of(id)
    redis.call('HSET', KEYS[8], id, ghosts_with(KEYS[8], id))
    made[topic] = (made[topic] or 0) + 1
  end
  for topic, number in pairs(made) do haunt(topic, number) end
  -- the records next: without them the ids are dropped wherever they still stand
  redis.call('HDEL', KEYS[2], unpack(going))
  redis.call('ZREM', KEYS[3], unpack(going))
  if keyed then
    for i, id in ipairs(ids) do
      local lane = due[i] and lane_of(id)
      if lane then lets_go(lanes, id, lane, due[i]) end
    end
    frees(lanes, ready)
  end
  redis.call('ZREM', KEYS[6], unpack(going))
  redis.call('HDEL', KEYS[7], unpack(going))
  if keyed then going = unrevoked(going) end
  if #going > 0 then redis.call('HDEL', KEYS[5], unpack(going)) end
end
local page = redis.call('HSCAN', KEYS[2], scan_from(ARGV[4]), 'COUNT', ARGV[6])
local found, bytes = {}, 0
for i = 1, #page[2], 2 do
  local id, record = page[2][i], page[2][i + 1]
  bytes = bytes + #id + #record
  if tagged(record) then
    found[#found + 1] = id
    if #found == 1000 then
      cancel(found)
      found = {}
    end
  end
end
cancel(found)
local first = keyed and rings(lanes) or math.huge
if first < math.huge then rouse(first) end
return {'ok', scan_on(page[1]), #page[2] / 2, bytes, cancelled, running}
