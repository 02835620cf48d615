-- renew: lets permits lapse later, before their leases are extended. One that has lapsed is granted again if its place is
-- free.
-- USES: clock, count, steady, epoch, another
-- KEYS 1 topology HASH
-- KEYS 2 bucket HASH
-- KEYS 3 permits ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 ms after which they lapse: the length of the lease, and 2,000 more
-- ARGV 4 concurrency: tasks at once, or '' without that limit
-- ARGV 5.. names of permits, at most 1,000
-- RETURNS {'ok', position, …} the positions (from 1) of those whose places were taken: their leases must not be extended
--         | {'stale', epoch} where the topology is another engine's
-- ATOMIC
-- COST O(n log N)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if another(epoch, ARGV[1]) then return {'stale', epoch} end
local now_ms = math.floor(clock_us(ARGV[2]) / 1000)
local bucket = redis.call('HMGET', KEYS[2], 'clock', 'ahead')
local steady_ms = steady(now_ms, bucket[1], bucket[2])
local lapse_ms = steady_ms + tonumber(ARGV[3])
local answers, scores = {'ok'}, {}
-- a removal that removes nothing: behind it a server without memory takes the next writes
redis.call('ZREM', KEYS[3], '')
if #ARGV > 4 then
  local known = redis.call('ZMSCORE', KEYS[3], unpack(ARGV, 5))
  local free = 0
  if ARGV[4] ~= '' then
    free = tonumber(ARGV[4]) - redis.call('ZCOUNT', KEYS[3], '(' .. string.format('%.0f', steady_ms), '+inf')
    for _, score in ipairs(known) do
      -- one that has lapsed and that nobody has removed takes its place again
      if score and tonumber(score) <= steady_ms then free = free - 1 end
    end
  end
  for i, score in ipairs(known) do
    if not score and ARGV[4] ~= '' then
      free = free - 1
      if free < 0 then answers[#answers + 1] = i end
    end
    if score or (ARGV[4] ~= '' and free >= 0) then
      scores[#scores + 1], scores[#scores + 2] = lapse_ms, ARGV[4 + i]
    end
  end
end
if #scores > 0 then
  redis.call('ZADD', KEYS[3], unpack(scores))
  note_steady(KEYS[2], now_ms, bucket[1], bucket[2])
end
return answers
