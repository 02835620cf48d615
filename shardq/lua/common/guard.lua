-- The first lines of every script on a shard: they decide if the caller may go on, and set meta, now_us and now_ms.
-- KEYS[1] is the shard's meta, ARGV[1] the caller's epoch, ARGV[2] an explicit now in µs ('' = the server's clock). A
-- shard without meta was never opened, or was lost by a failover: nothing is written there ('missing'). A caller with
-- an old epoch may have the wrong shard: it reads the topology again and chooses the shard anew ('stale').
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'wake_at', 'clock', 'ahead')
if not meta[1] then return {'missing'} end
if ARGV[1] ~= meta[1] then
  local known = tonumber(meta[1])
  if not (known and known < 9007199254740992) then return {'missing'} end -- another program's: open writes it anew
  if tonumber(ARGV[1]) < known then return {'stale', meta[1]} end
  redis.pcall('HSET', KEYS[1], 'epoch', ARGV[1]) -- refused when out of memory; the next caller adopts it
end
local now_us
if ARGV[2] == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
else
  now_us = tonumber(ARGV[2])
end
local now_ms = math.floor(now_us / 1000)
