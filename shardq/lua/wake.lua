-- wake: passes a wake-up on to another waiting process; the caller has no consumer free for it.
-- USES: epoch, guard, draw
-- KEYS 1 meta HASH
-- KEYS 2 ready LIST
-- KEYS 3 waiting ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 prefix of the wake channels of this shard; a process's name follows
-- ARGV 4 topic
-- RETURNS {'ok', 1 when nobody heard and more names are there: call again, else 0} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(1)
local more = redis.call('LLEN', KEYS[2]) > 0 and draw(ARGV[4], KEYS[3], 1, ARGV[3])
return {'ok', more and 1 or 0}
