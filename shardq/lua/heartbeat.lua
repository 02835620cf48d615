-- heartbeat: a dispatcher process says that it lives, and hears who else does and whether the topology changed.
-- KEYS 1 topology HASH
-- KEYS 2 members ZSET
-- ARGV 1 process
-- ARGV 2 now_us or ''
-- ARGV 3 ms after which a silent member counts as dead
-- ARGV 4 epoch the caller knows
-- ARGV 5 stay | leave
-- ARGV 6 news channel
-- RETURNS {'ok', now_us, {member, last heartbeat in ms, …}, epoch of the topology or '' when there is none,
--         {field, value, … of the topology; empty when its epoch is ARGV 4}}
-- ATOMIC
-- COST O(members)
local now_us
if ARGV[2] == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
else
  now_us = tonumber(ARGV[2])
end
local now_ms = math.floor(now_us / 1000)
local changed
if ARGV[5] == 'leave' then
  changed = redis.call('ZREM', KEYS[2], ARGV[1]) == 1
else
  -- a removal that removes nothing: behind it a server without memory takes the next write, which needs none
  redis.call('ZREM', KEYS[2], '')
  changed = redis.call('ZADD', KEYS[2], now_ms, ARGV[1]) == 1
end
local all = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
local living = {}
for i = 1, #all, 2 do
  local member, last_ms = all[i], tonumber(all[i + 1])
  if last_ms > now_ms then
    -- written before this server's clock went back, or by a master whose clock was ahead: it would live too long
    redis.call('ZADD', KEYS[2], now_ms, member)
    last_ms = now_ms
  end
  if last_ms < now_ms - tonumber(ARGV[3]) then
    redis.call('ZREM', KEYS[2], member)
    changed = true
  else
    living[#living + 1] = member
    living[#living + 1] = string.format('%.0f', last_ms)
  end
end
if changed then redis.pcall('SPUBLISH', ARGV[6], 'members') end
local epoch = redis.call('HGET', KEYS[1], 'epoch') or ''
local topology = epoch ~= ARGV[4] and redis.call('HGETALL', KEYS[1]) or {}
return {'ok', string.format('%.0f', now_us), living, epoch, topology}
