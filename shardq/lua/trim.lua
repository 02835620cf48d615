-- trim: removes dead tasks that are too old or too many, the earliest death first.
-- USES: epoch, guard
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 lease HASH
-- KEYS 4 dead ZSET
-- KEYS 5 why HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 age in ms past which they go
-- ARGV 4 how many may stay
-- ARGV 5 how many to remove at most, up to 1,000
-- RETURNS {'ok', removed, how many of them because there were too many} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N)
local most = tonumber(ARGV[5])
local excess = math.max(0, redis.call('ZCARD', KEYS[4]) - tonumber(ARGV[4]))
local old = redis.call('ZCOUNT', KEYS[4], '-inf', string.format('%.0f', now_ms - tonumber(ARGV[3])))
local going = math.min(most, math.max(excess, old))
if going == 0 then return {'ok', 0, 0} end
local ids = redis.call('ZRANGE', KEYS[4], 0, going - 1)
-- a key of the wrong type fails here, before anything is removed
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('HLEN', KEYS[5])
redis.call('HDEL', KEYS[2], unpack(ids))
redis.call('HDEL', KEYS[3], unpack(ids))
redis.call('HDEL', KEYS[5], unpack(ids))
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, going - 1)
redis.pcall('HINCRBY', KEYS[1], 'trimmed', going)
-- those past their age are the earliest: only what goes beside them would have stayed longer
local early = math.max(0, going - old)
if early > 0 then redis.call('HSET', KEYS[1], 'trimmed_at', string.format('%.0f', now_ms)) end
return {'ok', going, early}
