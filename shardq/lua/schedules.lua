-- schedules: reads schedules, and the clock by which their occurrences are counted.
-- USES: clock
-- KEYS 1 schedules HASH
-- ARGV 1 now_us or ''
-- ARGV 2.. names; none: all
-- RETURNS {'ok', now_us, {name, state, declaration, …}}
-- ATOMIC
-- COST O(schedules that are read)
local now_us = clock_us(ARGV[1])
local found = {}
if #ARGV == 1 then
  local all, declared = redis.call('HGETALL', KEYS[1]), {}
  for i = 1, #all, 2 do declared[all[i]] = all[i + 1] end
  for i = 1, #all, 2 do
    local declaration = declared[all[i] .. '/declared']
    if declaration then
      found[#found + 1] = all[i]
      found[#found + 1] = all[i + 1]
      found[#found + 1] = declaration
    end
  end
else
  for i = 2, #ARGV do
    local name = ARGV[i]
    local both = redis.call('HMGET', KEYS[1], name, name .. '/declared')
    if both[1] and both[2] then
      found[#found + 1] = name
      found[#found + 1] = both[1]
      found[#found + 1] = both[2]
    end
  end
end
return {'ok', string.format('%.0f', now_us), found}
