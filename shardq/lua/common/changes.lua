-- What becomes of lanes. One takes in, lets go, gives (give.lua) and frees, and the body notes it. At its end the body rings the lanes that
-- it noted: each once, with what one call tells of many asked by one call. Uses topic, lane, kept.
local FREED = 'freed'
local none_stayed = true -- each place that this script took away was there
-- note(lanes, lane, what): notes for rings what has become of a lane: an instant, if nothing but what is due then came in; FREED,
-- if nothing but places became free; nothing of it, if it may be anything. False is noted of a lane that needs no alarm.
-- RETURNS nothing
local function note(lanes, lane, what)
  local known = lanes[lane]
  what = what or true
  if known == nil then
    local n = (lanes.count or 0) + 1 -- '#' takes long in a table that has names, too
    lanes[n], lanes[lane], lanes.count = lane, what, n
  elseif type(known) == 'number' and type(what) == 'number' then
    lanes[lane] = math.min(known, what)
  elseif known ~= what then
    lanes[lane] = true
  end
end
-- enters(words): writes members of keys. The words: '0', member, ….
-- RETURNS nothing
local function enters(words)
  entered, stretch_lane = entered + redis.call('ZADD', KEYS[LANES], unpack(words)), nil
end
-- leaves(entries): removes members of keys.
-- RETURNS how many were there
local function leaves(entries)
  local gone = redis.call('ZREM', KEYS[LANES], unpack(entries))
  entered, stretch_lane = entered - gone, nil
  return gone
end
-- takes_in(lanes, id, lane, at_ms, number): has a task wait in its lane; with a number at the front.
-- RETURNS nothing
local function takes_in(lanes, id, lane, at_ms, number)
  redis.call('ZADD', KEYS[DUE], far(at_ms), id)
  enters({'0', entry_of(id, lane, at_ms, number)})
  note(lanes, lane, not number and at_ms)
end
-- takes_back(lanes, ids, at_ms): has tasks that were out wait at the front of their lanes again, in the order in which they had
-- left. Their places go after that: frees.
-- RETURNS nothing
local function takes_back(lanes, ids, at_ms)
  local numbers = rests.count > 0 and #ids > 0 and redis.call('ZMSCORE', KEYS[LANES + 3], unpack(ids)) or {}
  for i, id in ipairs(ids) do takes_in(lanes, id, lane_of(id), at_ms, math.abs(tonumber(numbers[i] or 0))) end
end
-- lets_go(lanes, id, lane, score): takes a task that waits out of its lane, by its score in `due`. Its lane may have waited for it.
-- No body puts anything at the front of a lane and then calls this: the front is read once.
-- RETURNS nothing
local function lets_go(lanes, id, lane, score)
  if leaves({entry_of(id, lane, score - FAR)}) == 0 and front_of(id, lane) then leaves({front_of(id, lane)}) end
  note(lanes, lane)
end
-- frees(lanes, ids): takes away the places of ids that are not ready or leased any more. Who had none loses none.
-- RETURNS nothing
local function frees(lanes, ids)
  local placed, marks = {}, {}
  for _, id in ipairs(ids) do
    local lane = lane_of(id)
    if lane then
      placed[#placed + 1] = id
      if untaken > 0 and is_rated(lane) then marks[#marks + 1] = READY .. id end
      note(lanes, lane, FREED)
    end
  end
  if #placed == 0 then return end
  outs = nil
  if redis.call('ZREM', KEYS[LANES + 1], unpack(placed)) < #placed then none_stayed = false end
  if #marks > 0 then redis.call('ZREM', KEYS[LANES + 1], unpack(marks)) end
  if rests.count == 0 or #placed > 3 and redis.call('ZCOUNT', KEYS[LANES + 3], '-inf', '(0') == 0 then return end
  redis.call('ZREM', KEYS[LANES + 3], unpack(placed))
end
-- takes_turns(lanes, ids): consumers, or a route, have taken these from a ready list: of a topic with a rate each is a turn of its lane.
-- What comes late by a little was a turn at its time. What was ready for longer, and nobody came, is turns from now on.
-- RETURNS nothing
local function takes_turns(lanes, ids)
  local marks, turns, words = {}, {}, {}
  for _, id in ipairs(ids) do
    local lane = lane_of(id)
    if lane and is_rated(lane) then
      marks[#marks + 1] = READY .. id
      if not turns[lane] then turns[#turns + 1] = lane end
      turns[lane] = (turns[lane] or 0) + 1
    end
  end
  if #marks == 0 then return end
  redis.call('ZREM', KEYS[LANES + 1], unpack(marks))
  look_at(turns)
  for _, lane in ipairs(turns) do
    local _, interval = window_of(lane)
    if interval > 0 then
      local turn = turn_of(lane) + turns[lane] * interval
      if turn < now_ms - LATE_MS then turn = now_ms + (turns[lane] - 1) * interval end
      words[#words + 1], words[#words + 2] = string.format('%.3f', turn), lane
      rests[lane] = turn
    end
    note(lanes, lane)
  end
  if #words == 0 then return end
  redis.call('ZADD', KEYS[LANES + 3], unpack(words))
end
-- unrevoked(ids): of tasks that go, those whose entries in `lease` go with them. The mark of a revoked lease stays as long as its
-- place: by it its holder's settle ends both.
-- RETURNS their ids
local function unrevoked(ids)
  local found, revoked = {}, redis.call('ZMSCORE', KEYS[LANES + 2], unpack(ids))
  for i, id in ipairs(ids) do
    if not revoked[i] then found[#found + 1] = id end
  end
  return found
end
-- revoked_ends(lanes, id, lease, dead): a replacing push has revoked the lease of an id, whose place was kept for its handler, by
-- an alarm of its own: takes both away, once, and its mark in `lease` where the new task is gone, which is neither in `due` nor `dead`.
-- RETURNS nothing
local function revoked_ends(lanes, id, lease, dead)
  if redis.call('ZREM', KEYS[LANES + 2], id) == 0 then return end
  frees(lanes, {id})
  if not redis.call('ZSCORE', KEYS[DUE], id) and not redis.call('ZSCORE', dead, id) then redis.call('HDEL', lease, id) end
end
-- alarm_of(lane, what): the alarm that a lane needs after what was noted of it. What came in or became free can bring it forward
-- alone, perhaps too far. That of a lane on hold is the end of the hold, also if it has nothing to give: dispatch takes both away.
-- RETURNS ms; nil for none, or no earlier one
local function alarm_of(lane, what)
  local rest, first = 0
  if is_kept(lane) or rules_of(lane).interval > 0 then
    local gate = gate_of(lane)
    if gate == 'closed' or gate == 'shut' then return nil end
    local held = held_of(lane)
    if held < hold_of(lane) then hold(lane, held) end
    if holds[lane] then return held end
    rest = rest_of(lane)
    if rest == math.huge then return nil end
  end
  if type(what) == 'number' then
    -- what is full now may have room by then
    return (what > now_ms or out_of(lane) < window_of(lane)) and math.max(what, rest) or nil
  elseif what == FREED then
    first = first_of(lane)
  else
    local out = out_of(lane)
    first = out < window_of(lane) and next_of(lane, out, 1)[1]
  end
  return first and math.max(due_of(first, lane), rest) or nil
end
-- rings(lanes): sets the alarms of the lanes that were noted.
-- RETURNS the earliest, ms; math.huge without one
local function rings(lanes)
  local earliest, told, word = math.huge
  for from = 1, lanes.count or 0, 1000 do
    local part, sooner, exact, none = {}, {}, {}, {}
    for i = from, math.min(from + 999, lanes.count) do
      if lanes[lanes[i]] then part[#part + 1] = lanes[i] end
    end
    look_at(part)
    for _, lane in ipairs(part) do
      local at = alarm_of(lane, lanes[lane])
      local words = lanes[lane] == true and exact or sooner
      if at then
        -- many have one instant; the server takes a word in less time than a number
        if at ~= told then told, word = at, at % 1 == 0 and string.format('%.0f', at) or at end
        words[#words + 1], words[#words + 2] = word, lane
        earliest = math.min(earliest, at)
      elseif lanes[lane] == true then
        none[#none + 1] = lane
      end
    end
    if #sooner > 0 then redis.call('ZADD', KEYS[LANES + 2], 'LT', unpack(sooner)) end
    if #exact > 0 then redis.call('ZADD', KEYS[LANES + 2], unpack(exact)) end
    if #none > 0 then redis.call('ZREM', KEYS[LANES + 2], unpack(none)) end
  end
  return earliest
end
