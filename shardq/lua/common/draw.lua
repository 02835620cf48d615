-- draw(topic, waiting, most): wakes up to `most` processes that wait for a topic, the one that has waited longest first.
-- Nobody heard it: that process is gone or connects anew, and looks by itself when it is back; another is drawn.
-- At most 8 draws a call. The channel of a process in this slot is ARGV[WAKES] .. its name.
local draws = 8
local function draw(topic, waiting, most, wakes)
  while most > 0 and draws > 0 do
    local drawn = redis.pcall('ZPOPMIN', waiting)[1]
    if not drawn then return end -- nobody, or refused: who waits looks by itself after a while
    draws = draws - 1
    local heard = redis.pcall('SPUBLISH', wakes .. drawn, topic)
    if type(heard) ~= 'table' and heard > 0 then most = most - 1 end
  end
end
