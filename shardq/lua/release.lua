-- release: takes permits back: those whose leases have ended, and those that were not used; wakes who waits for one.
-- USES: draw
-- KEYS 1 bucket HASH
-- KEYS 2 permits ZSET
-- KEYS 3 waiting ZSET
-- ARGV 1 topic
-- ARGV 2 how many were not used, and do not count for the rate
-- ARGV 3 prefix of the wake channels of the control slot; a process's name follows
-- ARGV 4 how many processes to wake besides one for each permit that was still there: by one that was woken in vain
-- ARGV 5.. names of permits, at most 1,000
-- RETURNS {'ok'}
-- ATOMIC
-- COST O(n log N)
local back = redis.call('ZREM', KEYS[2], '', unpack(ARGV, 5)) -- '' is nobody's: behind a removal a server without memory takes the rest
if ARGV[2] ~= '0' and redis.call('HEXISTS', KEYS[1], 'tokens') == 1 then
  redis.pcall('HINCRBYFLOAT', KEYS[1], 'tokens', ARGV[2])
end
draw(ARGV[1], KEYS[3], back + tonumber(ARGV[4]), ARGV[3])
return {'ok'}
