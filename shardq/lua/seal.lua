-- seal: writes one field, so that a WAIT or WAITAOF that follows on the connection covers every earlier write on this
-- node.
-- USES: epoch, guard, begin
-- KEYS 1 meta HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(1)
begin() -- also out of memory: what is moved away frees some
redis.call('HSET', KEYS[1], 'sealed', string.format('%.0f', now_ms))
return {'ok'}
