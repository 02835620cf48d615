-- put: stores tasks that were taken out of another shard. A second put changes nothing: the first used the mark up. A task
-- that is here already, because a failover undid its take, stays as it is.
-- USES: epoch, guard, count, begin, rouse, topic, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 lease HASH
-- KEYS 5 dead ZSET
-- KEYS 6 why HASH
-- KEYS 7 staged HASH
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
-- ARGV 4.. id, parcel, …, at most 1,000 pairs or 1 MiB
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC every task whose mark is still there
-- COST O(n log N)
local ids, marks = {}, {}
local keyed, lanes = LANES and lanes_from(9, 3), {}
for i = 4, #ARGV, 2 do
  local n = #ids + 1
  ids[n], marks[n] = ARGV[i], ARGV[i] .. '|' .. string.match(ARGV[i + 1], '^[^|]*')
end
if #ids == 0 then return {'ok'} end
-- a key of the wrong type, or a user who may not use a mark up, fails here: before anything is written
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
begin()
local open = redis.call('HMGET', KEYS[7], unpack(marks))
local due, dead, reasons, records, leases, topics, first, last = {}, {}, {}, {}, {}, {}, math.huge, 0
for n, id in ipairs(ids) do
  if open[n] and redis.call('HEXISTS', KEYS[2], id) == 0 then
    local parcel = ARGV[n * 2 + 3]
    local kind, number, score, lease, why, at = string.match(parcel, '^[^|]*|[^|]*|(%a+):?(%d*)|([^|]*)|(%d+)|(%d+)|()')
    number = tonumber(number)
    local lane = keyed and lane_of(id)
    -- also for a dead one: it may be requeued while its lane still gives elsewhere
    if lane then shut_lane(lane) end
    if lane and kind ~= 'dead' then
      takes_in(lanes, id, lane, tonumber(score) - FAR, number)
      last = math.max(last, number or 0)
    elseif kind == 'due' then
      due[#due + 1], due[#due + 2] = score, id
      if tonumber(score) < first then first = tonumber(score) end
    else
      dead[#dead + 1], dead[#dead + 2] = score, id
      reasons[#reasons + 1], reasons[#reasons + 2] = id, string.sub(parcel, at + lease, at + lease + why - 1)
    end
    if lease ~= '0' then leases[#leases + 1], leases[#leases + 2] = id, string.sub(parcel, at, at + lease - 1) end
    records[#records + 1], records[#records + 2] = id, string.sub(parcel, at + lease + why)
    topics[topic_of(id)] = true
  end
end
if #due > 0 then redis.call('ZADD', KEYS[3], unpack(due)) end
if #dead > 0 then
  redis.call('ZADD', KEYS[5], unpack(dead))
  redis.call('HSET', KEYS[6], unpack(reasons))
end
if #records > 0 then redis.call('HSET', KEYS[2], unpack(records)) end
if #leases > 0 then redis.call('HSET', KEYS[4], unpack(leases)) end
-- a topic is listed from its first task on, and is not idle
for topic in pairs(topics) do
  redis.pcall('HSETNX', KEYS[8], topic, 0)
  redis.pcall('HDEL', KEYS[1], 'idle/' .. topic)
end
redis.call('HDEL', KEYS[7], unpack(marks))
-- what leaves after them has a higher number
if last > count_of(redis.call('HGET', KEYS[1], 'left')) then redis.call('HSET', KEYS[1], 'left', string.format('%.0f', last)) end
if keyed then first = math.min(first, rings(lanes)) end
if first < math.huge then rouse(first) end
return {'ok'}
