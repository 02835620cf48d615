-- count_of(word): reads a number of a hash: of tasks, of ghosts, of ms.
-- RETURNS the number; 0 without one, and where another program has written something else
local function count_of(word)
  local count = tonumber(word or 0)
  return count and count % 1 == 0 and math.abs(count) < 9007199254740992 and count or 0
end
