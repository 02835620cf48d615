-- note_waits(waits, topic, since): counts tasks with a key that became ready, by how long after these instants that was, in bins of
-- reports: up to 15 ms each has one, from there on each doubling has eight. `waits` is a list of topic, bin, how many, ….
-- RETURNS nothing
local function note_waits(waits, topic, since)
  local place_by_time, place_by_bin = {}, {}
  for _, at in ipairs(since) do
    local place = place_by_time[at]
    if not place then
      local bin = math.min(math.max(0, now_ms - at), 68719476735) -- two years
      if bin > 15 then
        local _, bits = math.frexp(bin)
        bin = (bits - 3) * 8 + math.floor(bin / 2 ^ (bits - 4)) % 8
      end
      place = place_by_bin[bin]
      if not place then
        place = #waits + 3
        place_by_bin[bin], waits[place - 2], waits[place - 1], waits[place] = place, topic, bin, 0
      end
      place_by_time[at] = place
    end
    waits[place] = waits[place] + 1
  end
end
