-- push: stores new tasks under ids that were made for them and are sent once. After a lost answer push_unique is sent.
-- USES: epoch, guard, instant, rouse, record, dated
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 topics HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 t: of how many topics the tasks are
-- ARGV 5.. t times: topic; then for each task, at most 1,000 or 1 MiB: id, due (ms; <= 0 a negated delay, > 0 an instant), record
-- RETURNS {'ok'} | {'collided', id, …} nothing written, make other ids for these | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC all tasks or none
-- COST O(n log N)
local ids, scores, records, n, first = {}, {}, {}, 0, math.huge
local topics = tonumber(ARGV[4])
for i = 5 + topics, #ARGV, 3 do
  local id, at = ARGV[i], instant(ARGV[i + 1])
  n = n + 1
  ids[n] = id
  scores[n * 2 - 1], scores[n * 2] = at, id
  records[n * 2 - 1], records[n * 2] = id, dated(ARGV[i + 2])
  if at < first then first = at end
end
if n == 0 then return {'ok'} end
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
redis.call('HSET', KEYS[2], unpack(records))
-- a topic is listed from its first task on, and is not idle
for i = 5, 4 + topics do
  redis.pcall('HSETNX', KEYS[4], ARGV[i], 0)
  redis.pcall('HDEL', KEYS[1], 'idle/' .. ARGV[i])
end
rouse(first)
return {'ok'}
