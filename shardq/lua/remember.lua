-- remember: dedup windows that move to this shard. The later end of a window counts.
-- USES: guard
-- KEYS 1 meta HASH
-- KEYS 2 seen ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3.. end in ms, id, …, at most 1,000 pairs
-- RETURNS {'ok'} | {'stale', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N)
if #ARGV > 2 then redis.call('ZADD', KEYS[2], 'GT', unpack(ARGV, 3)) end
return {'ok'}
