-- set_schedule: writes a schedule if its state is still the one the caller saw.
-- USES: begin
-- KEYS 1 schedules HASH
-- ARGV 1 name
-- ARGV 2 state that must be the present one, '' when there must be none
-- ARGV 3 state; '' removes the schedule
-- ARGV 4 declaration; '' leaves it as it is
-- ARGV 5 news channel, on which dispatchers are told; '' tells nobody
-- RETURNS {'ok'} | {'differs'}, and nothing was written
-- ATOMIC
-- COST O(1)
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return {'differs'} end
begin() -- also out of memory: a schedule can be paused then
local declared = ARGV[1] .. '/declared'
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1], declared)
elseif ARGV[4] == '' then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3], declared, ARGV[4])
end
if ARGV[5] ~= '' then redis.pcall('SPUBLISH', ARGV[5], 'schedules') end
return {'ok'}
