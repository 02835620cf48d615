-- get: reads one task as it is now.
-- USES: guard, steady, state
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 moved HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 id
-- RETURNS {'ok', state, instant or '', lease entry or '', reason or '', record} | {'ok', 'gone'} | {'ok', 'moving'} on its way to another shard | {'stale', epoch} | {'missing'}
-- ATOMIC
-- COST O(1)
local id = ARGV[3]
local state, at = state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[6])
local record = redis.call('HGET', KEYS[2], id)
if not record then return {'ok', redis.call('HEXISTS', KEYS[8], id) == 1 and 'moving' or 'gone'} end
if state == 'leased' then
  local _, ahead_ms = steady(now_ms, meta[3], meta[4])
  at = string.format('%.0f', at - ahead_ms)
end
return {
  'ok', state, at or '', redis.call('HGET', KEYS[5], id) or '', redis.call('HGET', KEYS[7], id) or '', record,
}
