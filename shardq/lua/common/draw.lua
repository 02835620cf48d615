-- How many processes this script may still wake, and how many names it may still draw: those of the gone cost little.
local wakings, draws = 8, 128
-- draw(topic, waiting, most, wakes): wakes up to `most` of the processes in the ZSET `waiting`, those that have waited
-- longest first. The message is the topic, the channel `wakes` and the process's name. A process that does not hear it
-- is gone or connects anew, and looks by itself when it is back; the next one is drawn in its place.
-- RETURNS true when nobody heard, or none may be woken any more, and names are left: whoever can should call wake
local function draw(topic, waiting, most, wakes)
  local woken = false
  while most > 0 and wakings > 0 and draws > 0 do
    local drawn = redis.pcall('ZPOPMIN', waiting)[1]
    if not drawn then return false end -- nobody waits, or it is refused: processes that wait look by themselves after a while
    draws = draws - 1
    local heard = redis.pcall('SPUBLISH', wakes .. drawn, topic)
    if type(heard) == 'table' then return false end -- who may not publish does not use up the names of the living
    if heard > 0 then most, wakings, woken = most - 1, wakings - 1, true end
  end
  if woken or most == 0 then return false end
  local left = redis.pcall('ZCARD', waiting)
  return type(left) == 'number' and left > 0
end
-- can_draw(waiting, among): tells if draw, for so many topics one after the other, wakes one of the processes in the ZSET `waiting`, unless
-- all are gone.
-- RETURNS true | false
local function can_draw(waiting, among)
  local count = redis.pcall('ZCARD', waiting)
  return type(count) == 'number' and count * among <= draws
end
