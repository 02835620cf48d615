-- Ghosts are entries of a ready list to be passed over: as many of an id as are counted for it, the oldest ones.
-- marked(ids, counts): which of these next entries are such. passed[id]: how many of them were dropped, kept by the body.
-- forget_passed(key): takes the dropped ones off the count. A removal must have come first (begin).
local marks_of, counted, passed = {}, {}, {}
local function marked(ids, counts)
  local marks = {}
  for i, id in ipairs(ids) do
    local count, before = tonumber(counts[i] or 0), marks_of[id] or 0
    if before < count then marks[i], marks_of[id], counted[id] = true, before + 1, count end
  end
  return marks
end
local function forget_passed(key)
  local gone = {}
  for id, number in pairs(passed) do
    if number < counted[id] then redis.call('HINCRBY', key, id, -number) else gone[#gone + 1] = id end
  end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
end
