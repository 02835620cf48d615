-- peek: counts the tasks of a shard by their state.
-- USES: guard
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- KEYS 3 leased ZSET
-- KEYS 4 dead ZSET
-- KEYS 5 topics HASH
-- KEYS 6.. ready LIST, of any topics
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- RETURNS {'ok', now_us, scheduled, leased, dead, due of the head in ms or '', {late, reaped, buried, forwarded}, {topic, dispatched, …},
--         {length of each list given, …}} | {'stale', epoch} | {'missing'}
-- ATOMIC one shard at one instant
-- COST O(topics)
local lengths = {}
for i = 6, #KEYS do lengths[i - 5] = redis.call('LLEN', KEYS[i]) end
local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
return {
  'ok', string.format('%.0f', now_us), redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[4]),
  head[2] or '', redis.call('HMGET', KEYS[1], 'late', 'reaped', 'buried', 'forwarded'), redis.call('HGETALL', KEYS[5]), lengths,
}
