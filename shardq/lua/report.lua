-- report: a worker process says that it lives, and what it has done; workers that are silent for too long are removed.
-- USES: clock, epoch, another
-- KEYS 1 topology HASH
-- KEYS 2 workers ZSET
-- KEYS 3 reports HASH
-- ARGV 1 epoch
-- ARGV 2 worker
-- ARGV 3 now_us or ''
-- ARGV 4 ms for which it counts as alive
-- ARGV 5 stay | leave
-- ARGV 6 report of this worker, or '' for the one before
-- RETURNS {'ok', 1 when this worker was not known before, else 0} | {'stale', epoch} where the topology is another engine's
-- ATOMIC a worker that is removed leaves no report
-- COST O(log workers + removed), 100 of them at most
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if another(epoch, ARGV[1]) then return {'stale', epoch} end
local now_ms = math.floor(clock_us(ARGV[3]) / 1000)
local until_ms = string.format('%.0f', now_ms + ARGV[4])
local joined = 0
if ARGV[5] == 'leave' then
  redis.call('ZREM', KEYS[2], ARGV[2])
  redis.call('HDEL', KEYS[3], ARGV[2])
else
  local added = redis.pcall('ZADD', KEYS[2], until_ms, ARGV[2])
  if type(added) == 'table' then
    -- a server without memory refuses it, and takes it behind a removal, which may remove nothing
    redis.call('ZREM', KEYS[2], '')
    added = redis.call('ZADD', KEYS[2], until_ms, ARGV[2])
  end
  joined = added
  if ARGV[6] ~= '' then redis.pcall('HSET', KEYS[3], ARGV[2], ARGV[6]) end
end
-- written before this server's clock went back, or by a master whose clock was ahead: it would live too long
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. until_ms, '+inf', 'LIMIT', 0, 100)) do
  redis.call('ZADD', KEYS[2], until_ms, worker)
end
local dead = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now_ms), 'LIMIT', 0, 100)
for _, worker in ipairs(dead) do
  redis.call('ZREM', KEYS[2], worker)
  redis.call('HDEL', KEYS[3], worker)
end
return {'ok', joined}
