-- A poller steps at least every 20 s: a lease longer than that needs no ring.
local STEP_MS = 20000
-- rouse(at_ms): says that something of this shard falls due at at_ms. Rings the bell, channel ARGV[3], if the poller
-- sleeps past that (wake_at), once a sleep; an instant in the past counts as now. A wake_at that is more than 50 ms
-- past means that a ring was lost or that nobody polls: then it rings again, at most once in 50 ms. A user who may not
-- publish still gets the rest, as a poller sleeps for a bounded time. It writes: call it last.
-- RETURNS nothing
local function rouse(at_ms)
  if at_ms < now_ms then at_ms = now_ms end
  local wake_at = tonumber(meta[2] or 'never') or math.huge
  local overdue = now_ms > wake_at + 50
  if at_ms < wake_at or overdue then
    redis.pcall('HSET', KEYS[1], 'wake_at', string.format('%.0f', overdue and now_ms or at_ms))
    redis.pcall('SPUBLISH', ARGV[3], '')
  end
end
