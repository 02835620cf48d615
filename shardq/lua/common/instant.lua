-- Now, rounded up to a whole ms: a delay that starts here is never too short.
local soon_ms = math.ceil(now_us / 1000)
-- instant(spec): the due time that a due word stands for. Zero or less is a delay in ms, negated, from now on; above
-- zero is an instant in ms.
-- RETURNS the due time in ms
local function instant(spec)
  local at = tonumber(spec)
  if at > 0 then return at end
  return soon_ms - at
end
