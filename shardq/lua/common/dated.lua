-- dated(record): writes an expiry that is relative to the push (x below 0 in the head) as an instant. Uses record and
-- instant.
-- RETURNS the record with that head, or as it was
local function dated(record)
  local first, high, low = string.byte(record, 1, 3)
  if not low or first % 16 < 8 then return record end
  -- most heads say nothing of that, and need not be read
  if not string.find(string.sub(record, 4, 3 + high * 256 + low), 'x', 1, true) then return record end
  local known, head, start = parts_of(record)
  if not known or not head or not head.x or head.x > 0 then return record end
  head.x = soon_ms - head.x
  local packed = cmsgpack.pack(head)
  local length = string.char(math.floor(#packed / 256), #packed % 256)
  return string.char(first) .. length .. packed .. string.sub(record, start)
end
