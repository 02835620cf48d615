-- with_reason(record, reason): notes in a record why the last attempt has failed: the end of the reason, 2 KiB at most, is the
-- first name of its head, in place of the one before.
-- RETURNS the record with it, or nil for a record that can't be read, or whose head has no room
local function with_reason(record, reason)
  local first, high, low, names = string.byte(record, 1, 4)
  local rest, start = '', 2
  if not first or first < 16 or first > 31 then return nil end
  if first < 24 then
    first, names = first + 8, 128
  else
    -- a map of more than 15 names would have another form
    if not names or names < 128 or names > 142 then return nil end
    start = 4 + high * 256 + low
    if #record < start - 1 then return nil end
    rest = string.sub(record, 5, start - 1)
    if string.sub(rest, 1, 3) == '\161e\218' then
      local more, less = string.byte(rest, 4, 5)
      if not less then return nil end
      rest, names = string.sub(rest, 6 + more * 256 + less), names - 1
    end
  end
  -- no letter is cut in two
  if #reason > 2048 then reason = (string.gsub(string.sub(reason, -2048), '^[\128-\191]+', '')) end
  local head = string.char(names + 1) .. '\161e\218' .. string.char(math.floor(#reason / 256), #reason % 256) .. reason .. rest
  if #head > 65535 then return nil end
  return string.char(first, math.floor(#head / 256), #head % 256) .. head .. string.sub(record, start)
end
