-- renew: lets permits lapse later, before their leases are extended. One that has lapsed is granted again if its place is
-- free.
-- USES: clock, count, steady
-- KEYS 1 bucket HASH
-- KEYS 2 permits ZSET
-- ARGV 1 now_us or ''
-- ARGV 2 ms after which they lapse: the length of the lease, and 2,000 more
-- ARGV 3 concurrency: tasks at once, or '' without that limit
-- ARGV 4.. names of permits, at most 1,000
-- RETURNS {'ok', position, …} the positions (from 1) of those whose places were taken: their leases must not be extended
-- ATOMIC
-- COST O(n log N)
local now_ms = math.floor(clock_us(ARGV[1]) / 1000)
local bucket = redis.call('HMGET', KEYS[1], 'clock', 'ahead')
local steady_ms = steady(now_ms, bucket[1], bucket[2])
local lapse_ms = steady_ms + tonumber(ARGV[2])
local answers, scores = {'ok'}, {}
-- a removal that removes nothing: behind it a server without memory takes the next writes
redis.call('ZREM', KEYS[2], '')
if #ARGV > 3 then
  local known = redis.call('ZMSCORE', KEYS[2], unpack(ARGV, 4))
  local free = 0
  if ARGV[3] ~= '' then
    free = tonumber(ARGV[3]) - redis.call('ZCOUNT', KEYS[2], '(' .. string.format('%.0f', steady_ms), '+inf')
    for _, score in ipairs(known) do
      -- one that has lapsed and that nobody has removed takes its place again
      if score and tonumber(score) <= steady_ms then free = free - 1 end
    end
  end
  for i, score in ipairs(known) do
    if not score and ARGV[3] ~= '' then
      free = free - 1
      if free < 0 then answers[#answers + 1] = i end
    end
    if score or (ARGV[3] ~= '' and free >= 0) then
      scores[#scores + 1], scores[#scores + 2] = lapse_ms, ARGV[3 + i]
    end
  end
end
if #scores > 0 then
  redis.call('ZADD', KEYS[2], unpack(scores))
  note_steady(KEYS[1], now_ms, bucket[1], bucket[2])
end
return answers
