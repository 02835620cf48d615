-- another(stored, known): tells if a stored epoch is of another engine than the one that the caller knows: then its address
-- has come to lead elsewhere, and it must write nothing there. What another program has written is nobody's engine:
-- processes go on by what they know. Uses epoch.
-- RETURNS true | false
local function another(stored, known)
  local epoch, theirs = epoch_of(stored)
  local _, own = epoch_of(known)
  return own ~= '' and epoch > 0 and theirs ~= own
end
