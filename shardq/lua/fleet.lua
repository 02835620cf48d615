-- fleet: lists the processes of the engine, dispatchers and workers, with their reports. Changes nothing.
-- USES: clock
-- KEYS 1 members ZSET
-- KEYS 2 workers ZSET
-- KEYS 3 reports HASH
-- ARGV 1 now_us or ''
-- RETURNS {'ok', now_us, {dispatcher, ms until which it counts as alive, …}, {worker, the same, …}, {process, report, …}};
--         those whose time is over are still in it
-- ATOMIC
-- COST O(processes), each with a report of 8 KiB at most
local members = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
local workers = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
return {'ok', string.format('%.0f', clock_us(ARGV[1])), members, workers, redis.call('HGETALL', KEYS[3])}
