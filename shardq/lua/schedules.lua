-- schedules: reads schedules, and the clock by which their occurrences are counted.
-- USES: clock, epoch, another
-- KEYS 1 topology HASH
-- KEYS 2 schedules HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3.. name, up to 1,000
-- RETURNS {'ok', now_us, how many names were looked for, {name, state or '', declaration or '', …} without those of which
--         there is neither} | {'stale', epoch} where the topology is another engine's
-- ATOMIC
-- COST O(n), at most about 1 MiB: the names that were not looked for are to be asked for again
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if another(epoch, ARGV[1]) then return {'stale', epoch} end
local found, taken, bytes = {}, 0, 0
for i = 3, #ARGV do
  if bytes >= 1048576 then break end
  taken = i - 2
  local name = ARGV[i]
  local both = redis.call('HMGET', KEYS[2], name, name .. '/declared')
  if both[1] or both[2] then
    found[#found + 1] = name
    found[#found + 1] = both[1] or ''
    found[#found + 1] = both[2] or ''
    bytes = bytes + #(both[1] or '') + #(both[2] or '')
  end
end
return {'ok', string.format('%.0f', clock_us(ARGV[2])), taken, found}
