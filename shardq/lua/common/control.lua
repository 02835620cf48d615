-- The first lines of scripts on the control slot that depend on the topology, KEYS[1]. They do what guard does for a
-- shard: they compare the epochs, and set now_us and now_ms.
local present = redis.call('HGET', KEYS[1], 'epoch')
if not present then return {'missing'} end
if tonumber(ARGV[1]) < tonumber(present) then return {'stale', present} end
local now_us
if ARGV[2] == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
else
  now_us = tonumber(ARGV[2])
end
local now_ms = math.floor(now_us / 1000)
