-- dated(record): a head that says how long from now its task is good (x below 0) gets the instant in its place.
local function dated(record)
  local first = string.byte(record)
  if not first or first % 16 < 8 then return record end
  local known, head, start = parts_of(record)
  if not known or not head or not head.x or head.x > 0 then return record end
  head.x = soon_ms - head.x
  local packed = cmsgpack.pack(head)
  local length = string.char(math.floor(#packed / 256), #packed % 256)
  return string.char(first) .. length .. packed .. string.sub(record, start)
end
-- same(stored, sent): whether one is the other, whatever instant its time from now came to.
local function same(stored, sent)
  if stored == sent then return true end
  local known, head, start = parts_of(sent)
  if not known or not head or not head.x or head.x > 0 then return false end
  local known_too, dated_head, dated_start = parts_of(stored)
  if not known_too or not dated_head or string.byte(stored) ~= string.byte(sent) then return false end
  if not dated_head.x or dated_head.m ~= head.m then return false end
  local names, dated_names = head.h or {}, dated_head.h or {}
  for name, value in pairs(names) do
    if dated_names[name] ~= value then return false end
  end
  for name in pairs(dated_names) do
    if names[name] == nil then return false end
  end
  return string.sub(stored, dated_start) == string.sub(sent, start)
end
