-- reserve: leaves a mark for each task that is about to move to this shard; one put under the same number uses it up.
-- USES: epoch, guard, roomy
-- KEYS 1 meta HASH
-- KEYS 2 staged HASH
-- KEYS 3 task HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 number of this attempt to move, never used before; one with a '!' may be given again: it marks no id that is here
-- ARGV 4.. ids, at most 1,000
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n)
local marks = {}
local again = string.find(ARGV[3], '!', 1, true)
for i = 4, #ARGV do
  if not again or redis.call('HEXISTS', KEYS[3], ARGV[i]) == 0 then
    marks[#marks + 1], marks[#marks + 2] = ARGV[i] .. '|' .. ARGV[3], ''
  end
end
local many = roomy(redis.call('HLEN', KEYS[2]), 512, #marks / 2)
if many then redis.call('HSET', KEYS[2], '', FILLER) end
if #marks > 0 then redis.call('HSET', KEYS[2], unpack(marks)) end
if many then redis.pcall('HDEL', KEYS[2], '') end
return {'ok'}
