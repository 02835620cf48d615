-- push: stores new tasks under ids that were made for them and are sent once. After a lost answer push_unique is sent.
-- USES: epoch, guard, instant, rouse, record, dated, topic, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 topics HASH
-- KEYS 5 keys ZSET, where the engine has keys
-- KEYS 6 placed ZSET, where the engine has keys
-- KEYS 7 alarms ZSET, where the engine has keys
-- KEYS 8 rests ZSET, where the engine has keys
-- KEYS 9 holds HASH, where the engine has keys
-- KEYS 10 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 t: of how many topics the tasks are
-- ARGV 5.. t times: topic; then for each task, at most 1,000 or 1 MiB: id, due (ms; <= 0 a negated delay, > 0 an instant; a blank behind it says of
--         an id with a key that its lane has another shard by an earlier number), record
-- RETURNS {'ok'} | {'collided', id, …} nothing written, make other ids for these | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC all tasks or none
-- COST O(n log N)
local ids, scores, records, n, first = {}, {}, {}, 0, math.huge
local topics = tonumber(ARGV[4])
if #ARGV == 4 + topics then return {'ok'} end
local keyed, lanes, entering, shutting = LANES and lanes_from(5, 3), {}, {}, {}
for i = 5 + topics, #ARGV, 3 do
  local id, at = ARGV[i], instant(ARGV[i + 1])
  local lane, score = keyed and lane_of(id), at
  if lane then
    note(lanes, lane, at)
    local entry, entered = entry_of(id, lane, at), #entering
    score = score_of(entry, lane)
    entering[entered + 1], entering[entered + 2] = '0', entry
    if string.byte(ARGV[i + 1], -1) == 32 then shutting[#shutting + 1] = lane end
  elseif at < first then
    first = at
  end
  n = n + 1
  ids[n] = id
  scores[n * 2 - 1], scores[n * 2] = score, id
  records[n * 2 - 1], records[n * 2] = id, dated(ARGV[i + 2])
end
local taken = redis.call('HMGET', KEYS[2], unpack(ids))
local collided
for i = 1, n do
  if taken[i] then
    collided = collided or {'collided'}
    collided[#collided + 1] = ids[i]
  end
end
if collided then return collided end
-- due before task: should the second be refused, an id without a record is dropped at its claim, while a record
-- without an id would stay for ever
redis.call('ZADD', KEYS[3], unpack(scores))
if #entering > 0 then enters(entering) end
for _, lane in ipairs(shutting) do shut_lane(lane) end
redis.call('HSET', KEYS[2], unpack(records))
-- a topic is listed from its first task on, and is not idle
for i = 5, 4 + topics do
  redis.pcall('HSETNX', KEYS[4], ARGV[i], 0)
  redis.pcall('HDEL', KEYS[1], 'idle/' .. ARGV[i])
end
if #entering > 0 then first = math.min(first, rings(lanes)) end
if first < math.huge then rouse(first) end
return {'ok'}
