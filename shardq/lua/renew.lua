-- renew: extends permits together with the leases that they were granted for.
-- USES: clock, steady
-- KEYS 1 bucket HASH
-- KEYS 2 permits ZSET
-- ARGV 1 now_us or ''
-- ARGV 2 length of the lease from now in ms
-- ARGV 3.. names of permits, at most 1,000
-- RETURNS {'ok'}
-- ATOMIC
-- COST O(n log N)
local now_ms = math.floor(clock_us(ARGV[1]) / 1000)
local bucket = redis.call('HMGET', KEYS[1], 'clock', 'ahead')
local deadline = steady(now_ms, bucket[1], bucket[2]) + tonumber(ARGV[2])
-- a removal that removes nothing: behind it a server without memory takes the next write, which needs none
redis.call('ZREM', KEYS[2], '')
local scores = {}
for i = 3, #ARGV do scores[#scores + 1], scores[#scores + 2] = deadline, ARGV[i] end
if #scores > 0 then
  redis.call('ZADD', KEYS[2], 'XX', unpack(scores))
  note_steady(KEYS[1], now_ms, bucket[1], bucket[2])
end
return {'ok'}
