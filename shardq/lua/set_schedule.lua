-- set_schedule: writes schedules whose state is still the one that the caller saw.
-- USES: begin, epoch, another
-- KEYS 1 schedules HASH
-- KEYS 2 topology HASH
-- ARGV 1 epoch
-- ARGV 2 news channel, on which dispatchers are told of each schedule that is written; '' tells nobody
-- ARGV 3.. for each schedule, at most 1,000 or 1 MiB: name, state that must be the present one, '' when there must be
--         none; state, '' removes the schedule; declaration, '' leaves it as it is
-- RETURNS {'ok', 1 or 0, …}: 0 where the state is another one, or the topology another engine's: nothing
--         of the schedule was written
-- ATOMIC
-- COST O(n)
local elsewhere = another(redis.call('HGET', KEYS[2], 'epoch'), ARGV[1])
local answer = {'ok'}
for i = 3, #ARGV, 4 do
  local name, seen, state, declaration = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local written = not elsewhere and (redis.call('HGET', KEYS[1], name) or '') == seen
  if written then
    begin() -- also out of memory: a schedule can be paused then
    local declared = name .. '/declared'
    if state == '' then
      redis.call('HDEL', KEYS[1], name, declared)
    elseif declaration == '' then
      redis.call('HSET', KEYS[1], name, state)
    else
      redis.call('HSET', KEYS[1], name, state, declared, declaration)
    end
    if ARGV[2] ~= '' then redis.pcall('SPUBLISH', ARGV[2], 'schedules/' .. name) end
  end
  answer[#answer + 1] = written and 1 or 0
end
return answer
