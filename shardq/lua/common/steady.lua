-- Lengths of time (leases, dedup windows, waits, permits) go by a steady clock, in ms. It is the server's clock; when
-- that goes back (set by hand, or a failover to a master that is behind), the steady clock goes on from where it was.
-- Its state is two fields of a hash: `clock`, the latest time noted there, and `ahead`, how far it was before the
-- server's clock then.
-- steady(now_ms, clock, ahead): reads the steady clock.
-- RETURNS its time in ms, and how far that is before the server's clock
local function steady(now_ms, clock, ahead)
  local at = math.max(now_ms + tonumber(ahead or 0), tonumber(clock or 0))
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
  elseif at - tonumber(clock or 0) >= 1000 then
    redis.pcall('HSET', key, 'clock', string.format('%.0f', at))
  end
end
