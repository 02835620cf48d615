-- release: takes permits back: those whose tasks are settled, and those that were not used.
-- KEYS 1 bucket HASH
-- KEYS 2 permits ZSET
-- ARGV 1 how many were not used, and do not count for the rate
-- ARGV 2.. names of permits, at most 1,000
-- RETURNS {'ok'}
-- ATOMIC
-- COST O(n log N)
redis.call('ZREM', KEYS[2], '', unpack(ARGV, 2)) -- '' is nobody's: behind a removal a server without memory takes the rest
if ARGV[1] ~= '0' and redis.call('HEXISTS', KEYS[1], 'tokens') == 1 then
  redis.call('HINCRBYFLOAT', KEYS[1], 'tokens', ARGV[1])
end
return {'ok'}
