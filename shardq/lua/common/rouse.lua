-- rouse(at_ms): something of this shard falls due at at_ms; wakes its poller when that is before the instant the
-- poller sleeps to (wake_at), once a sleep. A wake_at long past means that a bell was lost or nobody polls: ring
-- again, at most once in 50 ms. An instant in the past counts as now. The channel is ARGV[3], in this slot. A user who
-- may not publish still gets the rest: the poller's capped sleep covers it. Call it last: it writes.
-- A poller steps at least every 20 s: a lease longer than that needs no ring.
local STEP_MS = 20000
local function rouse(at_ms)
  if at_ms < now_ms then at_ms = now_ms end
  local wake_at = tonumber(meta[2] or 'never') or math.huge
  local overdue = now_ms > wake_at + 50
  if at_ms < wake_at or overdue then
    redis.pcall('HSET', KEYS[1], 'wake_at', string.format('%.0f', overdue and now_ms or at_ms))
    redis.pcall('SPUBLISH', ARGV[3], '')
  end
end
