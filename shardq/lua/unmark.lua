-- unmark: removes the marks that are left when every task is where it belongs. Their takes were never made.
-- USES: epoch, guard
-- KEYS 1 meta HASH
-- KEYS 2 staged HASH
-- ARGV 1 epoch in which the earlier numbers of shards were forgotten: a mark of a later change must stay
-- ARGV 2 now_us or ''
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(1); the memory is freed in the background
redis.call('UNLINK', KEYS[2])
return {'ok'}
