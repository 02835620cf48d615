-- forget: removes dedup windows that another shard remembers now, except those that became longer meanwhile.
-- USES: epoch, guard
-- KEYS 1 meta HASH
-- KEYS 2 seen ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3.. end in ms, id, …, at most 1,000 pairs
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N)
local ids = {}
for i = 4, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
if #ids == 0 then return {'ok'} end
local present, going = redis.call('ZMSCORE', KEYS[2], unpack(ids)), {}
for i, id in ipairs(ids) do
  if present[i] and tonumber(present[i]) <= tonumber(ARGV[i * 2 + 1]) then going[#going + 1] = id end
end
if #going > 0 then redis.call('ZREM', KEYS[2], unpack(going)) end
return {'ok'}
