-- release: takes permits back: those whose leases have ended, and those that were not used; wakes who waits for one.
-- USES: draw, epoch, another
-- KEYS 1 topology HASH
-- KEYS 2 bucket HASH
-- KEYS 3 permits ZSET
-- KEYS 4 waiting ZSET
-- ARGV 1 epoch
-- ARGV 2 topic
-- ARGV 3 how many were not used, and do not count for the rate
-- ARGV 4 prefix of the wake channels of the control slot; a process's name follows
-- ARGV 5 how many processes to wake besides one for each permit that was still there: by one that was woken in vain
-- ARGV 6.. names of permits, at most 1,000
-- RETURNS {'ok'} | {'stale', epoch} where the topology is another engine's
-- ATOMIC
-- COST O(n log N)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if another(epoch, ARGV[1]) then return {'stale', epoch} end
local back = redis.call('ZREM', KEYS[3], '', unpack(ARGV, 6)) -- '' is nobody's: behind a removal a server without memory takes the rest
if ARGV[3] ~= '0' and redis.call('HEXISTS', KEYS[2], 'tokens') == 1 then
  redis.pcall('HINCRBYFLOAT', KEYS[2], 'tokens', ARGV[3])
end
draw(ARGV[2], KEYS[4], back + tonumber(ARGV[5]), ARGV[4])
return {'ok'}
