-- wake: a wake-up that a process heard and has nobody free for goes to another process that waits.
-- USES: guard, draw
-- KEYS 1 meta HASH
-- KEYS 2 ready LIST
-- KEYS 3 waiting ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 what the wake channels of this shard begin with; a process's name follows
-- ARGV 4 topic
-- RETURNS {'ok'} | {'stale', epoch} | {'missing'}
-- ATOMIC
-- COST O(1)
if redis.call('LLEN', KEYS[2]) > 0 then draw(ARGV[4], KEYS[3], 1, ARGV[3]) end
return {'ok'}
