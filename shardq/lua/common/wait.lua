-- note_wait(waits, topic, ms): counts a task with a key that became ready so long after it was due, in a bin of reports: up to 15 ms
-- each has one, from there on each doubling has eight. `waits` is a list of topic, bin, how many, …, and knows the place of each number.
-- RETURNS nothing
local function note_wait(waits, topic, ms)
  local bin = math.min(math.max(0, ms), 68719476735) -- two years
  if bin > 15 then
    local _, bits = math.frexp(bin)
    bin = (bits - 3) * 8 + math.floor(bin / 2 ^ (bits - 4)) % 8
  end
  local name = topic .. '/' .. bin -- a slash: no name that means something in an answer
  local place = waits[name]
  if not place then
    place = #waits + 3
    waits[name], waits[place - 2], waits[place - 1], waits[place] = place, topic, bin, 0
  end
  waits[place] = waits[place] + 1
end
