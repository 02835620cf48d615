-- swept: notes that nothing in this shard belongs elsewhere by the present number of shards.
-- USES: epoch, guard, begin
-- KEYS 1 meta HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 epoch in which that number came in force
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(1)
begin()
redis.call('HSET', KEYS[1], 'swept', ARGV[3])
return {'ok'}
