-- The first lines of scripts on the control slot that depend on the topology, KEYS[1]. They do what guard does for a
-- shard: they compare the epochs, and set now_us and now_ms. Uses epoch, clock.
local present = redis.call('HGET', KEYS[1], 'epoch')
if not present then return {'missing'} end
if ARGV[1] ~= present then
  -- what another program has written makes nobody stale: nothing newer could be read
  local newest, theirs = epoch_of(present)
  local mine, own = epoch_of(ARGV[1])
  if newest > 0 and (mine <= newest or theirs ~= own) then return {'stale', present} end
end
local now_us = clock_us(ARGV[2])
local now_ms = math.floor(now_us / 1000)
