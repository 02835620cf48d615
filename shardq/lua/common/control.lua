-- The first lines of scripts on the control slot that depend on the topology, KEYS[1]. They do what guard does for a
-- shard: they compare the epochs, and set now_us and now_ms. Uses clock.
local present = redis.call('HGET', KEYS[1], 'epoch')
if not present then return {'missing'} end
-- what another program has written makes nobody stale: nothing newer could be read
local newest = tonumber(present)
if newest and tonumber(ARGV[1]) < newest and newest < 9007199254740992 then return {'stale', present} end
local now_us = clock_us(ARGV[2])
local now_ms = math.floor(now_us / 1000)
