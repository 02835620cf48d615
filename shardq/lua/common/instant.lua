-- instant(spec): a due time in ms. spec <= 0 is a delay, negated, counted from now and rounded up; > 0 an instant.
local soon_ms = math.ceil(now_us / 1000)
local function instant(spec)
  local at = tonumber(spec)
  if at > 0 then return at end
  return soon_ms - at
end
