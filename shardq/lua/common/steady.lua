-- What lasts (leases, dedup windows, waits, permits) goes by a steady clock, in ms. It is the server's; when that goes back
-- (set by hand, a failover to a master that is behind), it goes on from where it was. Two fields of a hash are its state:
-- `clock`, the latest time noted there, and `ahead`, how far it was before the server's clock then.
-- steady(now_ms, clock, ahead): the time, and how far that is before the server's clock.
local function steady(now_ms, clock, ahead)
  local at = math.max(now_ms + tonumber(ahead or 0), tonumber(clock or 0))
  return at, at - now_ms
end
-- note_steady(key, …): once a second, and when the server's clock went back.
local function note_steady(key, now_ms, clock, ahead)
  local at, lead = steady(now_ms, clock, ahead)
  if lead ~= tonumber(ahead or 0) then
    redis.pcall('HDEL', key, '') -- behind a removal a server without memory takes the rest
    redis.pcall('HSET', key, 'clock', string.format('%.0f', at), 'ahead', string.format('%.0f', lead))
  elseif at - tonumber(clock or 0) >= 1000 then
    redis.pcall('HSET', key, 'clock', string.format('%.0f', at))
  end
end
