-- The first lines of every script on a shard: they decide if the caller may go on, and set meta, now_us and now_ms.
-- KEYS[1] is the shard's meta, ARGV[1] the caller's epoch, ARGV[2] an explicit now in µs ('' = the server's clock). A
-- shard without meta was never opened, or was lost by a failover: nothing is written there ('missing'). A caller with
-- an old epoch, or of another engine, may have the wrong shard: it reads the topology again and chooses the shard anew
-- ('stale'). A shard that knows an older topology than the caller is told the newer one by open, which answers what the
-- shard knew: a server that came back older shows by that, before anything is written to it ('behind'). Uses epoch.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'wake_at', 'clock', 'ahead')
if not meta[1] then return {'missing'} end
if ARGV[1] ~= meta[1] then
  local known, theirs = epoch_of(meta[1])
  if known == 0 then return {'missing'} end -- another program's: open writes it anew
  local mine, own = epoch_of(ARGV[1])
  if mine > known and own == theirs then return {'behind', meta[1]} end
  return {'stale', meta[1]}
end
local now_us
if ARGV[2] == '' then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
else
  now_us = tonumber(ARGV[2])
end
local now_ms = math.floor(now_us / 1000)
