-- clear: removes parcels that were put at their target.
-- USES: epoch, guard
-- KEYS 1 meta HASH
-- KEYS 2 moved HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3.. id, number, …, at most 1,000 pairs
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n)
local ids, numbers, going = {}, {}, {}
for i = 3, #ARGV, 2 do ids[#ids + 1], numbers[#numbers + 1] = ARGV[i], ARGV[i + 1] end
if #ids == 0 then return {'ok'} end
local parcels = redis.call('HMGET', KEYS[2], unpack(ids))
for i, id in ipairs(ids) do
  if parcels[i] and string.sub(parcels[i], 1, #numbers[i] + 1) == numbers[i] .. '|' then going[#going + 1] = id end
end
if #going > 0 then redis.call('HDEL', KEYS[2], unpack(going)) end
return {'ok'}
