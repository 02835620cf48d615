-- report: a worker process says that it lives, and what it has done; workers that are silent for too long are removed.
-- USES: clock
-- KEYS 1 workers ZSET
-- KEYS 2 reports HASH
-- ARGV 1 worker
-- ARGV 2 now_us or ''
-- ARGV 3 ms for which it counts as alive
-- ARGV 4 stay | leave
-- ARGV 5 report of this worker, or '' for the one before
-- RETURNS {'ok', 1 when this worker was not known before, else 0}
-- ATOMIC a worker that is removed leaves no report
-- COST O(log workers + removed), 100 of them at most
local now_ms = math.floor(clock_us(ARGV[2]) / 1000)
local until_ms = string.format('%.0f', now_ms + ARGV[3])
local joined = 0
if ARGV[4] == 'leave' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
else
  local added = redis.pcall('ZADD', KEYS[1], until_ms, ARGV[1])
  if type(added) == 'table' then
    -- a server without memory refuses it, and takes it behind a removal, which may remove nothing
    redis.call('ZREM', KEYS[1], '')
    added = redis.call('ZADD', KEYS[1], until_ms, ARGV[1])
  end
  joined = added
  if ARGV[5] ~= '' then redis.pcall('HSET', KEYS[2], ARGV[1], ARGV[5]) end
end
-- written before this server's clock went back, or by a master whose clock was ahead: it would live too long
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. until_ms, '+inf', 'LIMIT', 0, 100)) do
  redis.call('ZADD', KEYS[1], until_ms, worker)
end
local dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now_ms), 'LIMIT', 0, 100)
for _, worker in ipairs(dead) do
  redis.call('ZREM', KEYS[1], worker)
  redis.call('HDEL', KEYS[2], worker)
end
return {'ok', joined}
