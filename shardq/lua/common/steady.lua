-- Lengths of time (leases, dedup windows, waits, permits) go by a steady clock, in ms. It is the server's clock; when
-- that goes back (set by hand, or a failover to a master that is behind), the steady clock goes on from where it was.
-- Its state is two fields of a hash: `clock`, the latest time noted there, and `ahead`, how far it was before the
-- server's clock then.
-- ms_of(word): reads a time of that state. One past the year 9999, or none at all, is of another program. Uses count.
-- RETURNS ms; 0 for what can't be
local function ms_of(word)
  local ms = count_of(word)
  return ms > 0 and ms < 253402300800000 and ms or 0
end
-- steady(now_ms, clock, ahead): reads the steady clock.
-- RETURNS its time in ms, and how far that is before the server's clock
local function steady(now_ms, clock, ahead)
  local at = math.max(now_ms + ms_of(ahead), ms_of(clock))
  return at, at - now_ms
end
-- note_steady(key, now_ms, clock, ahead): writes that state to the HASH `key`, once a second, and at once when the
-- server's clock went back.
-- RETURNS nothing
local function note_steady(key, now_ms, clock, ahead)
  local at, lead = steady(now_ms, clock, ahead)
  if lead ~= tonumber(ahead or 0) then
    redis.pcall('HDEL', key, '') -- a removal comes first: after it a server without memory takes the rest
    redis.pcall('HSET', key, 'clock', string.format('%.0f', at), 'ahead', string.format('%.0f', lead))
  elseif at - ms_of(clock) >= 1000 then
    redis.pcall('HSET', key, 'clock', string.format('%.0f', at))
  end
end
