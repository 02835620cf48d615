-- Tasks become ready: dispatch gives what is due, and settle the next task of a lane in which it has freed a place. Uses count, topic,
-- lane.
-- Of tasks with a key that are to become ready, what is known: id → its member of keys; id → true if it leaves under a number, as
-- others of its lane are out, or it has one; lane → the instant of its last turn, where that is set anew.
local entry_by_id, left_beside, turn_by_lane = {}, {}, {}
-- note_numbers(ids): under which number these leave their lanes: one from the front under the one that it has, others under a new one.
-- RETURNS nothing
local function note_numbers(ids)
  local last, words = count_of(redis.call('HGET', KEYS[1], 'left')), {}
  for _, id in ipairs(ids) do
    local number = number_of(entry_by_id[id], lane_of(id))
    if not number then
      last = last + 1
      number = last
    end
    words[#words + 1], words[#words + 2] = -number, id
  end
  redis.call('HSET', KEYS[1], 'left', string.format('%.0f', last))
  redis.call('ZADD', KEYS[LANES + 3], unpack(words))
  rests.count = rests.count + #ids
end
-- gives_way(entry, lane, out): notes of the next task of a lane, of which so many are out, that it becomes ready.
-- RETURNS its id
local function gives_way(entry, lane, out)
  local id = id_of(entry, lane)
  entry_by_id[id] = entry
  if out > 0 or (number_of(entry, lane) or 0) > 0 then left_beside[id] = true end
  return id
end
-- leave_lanes(ids): the keyed ones of these, which are of one topic, leave their lanes for their places.
-- RETURNS nothing
local function leave_lanes(ids)
  local gone, places, noted, leaving, rated, at = {}, {}, {}, {}, nil, 0
  for _, id in ipairs(ids) do
    local entry = entry_by_id[id]
    if entry then
      gone[#gone + 1] = entry
      places[at + 1], places[at + 2], at = '0', id, at + 2
      if left_beside[id] then leaving[#leaving + 1] = id end
      if rated == nil then rated = rules_of(lane_of(id)).interval > 0 end
      if rated then
        local lane = lane_of(id)
        places[at + 1], places[at + 2], at = '0', READY .. id, at + 2
        untaken = untaken + 1
        if turn_by_lane[lane] then
          rests[lane], rests.all = turn_by_lane[lane], false
          noted[#noted + 1], noted[#noted + 2] = string.format('%.3f', turn_by_lane[lane]), lane
          turn_by_lane[lane] = nil
        end
      end
    end
  end
  if at == 0 then return end
  outs = nil
  redis.call('ZREM', KEYS[LANES], unpack(gone))
  redis.call('ZADD', KEYS[LANES + 1], unpack(places))
  if #noted > 0 then redis.call('ZADD', KEYS[LANES + 3], unpack(noted)) end
  if #leaving > 0 then note_numbers(leaving) end
end
-- note_began(topic, count): of a list that was empty the head is known to have come now.
-- RETURNS nothing
local function note_began(topic, count)
  local field = 'began/' .. topic
  redis.pcall('HSET', KEYS[1], field, string.format('%.0f:%.0f', count, now_ms))
end
-- becomes_ready(lanes, due, counts, list, topic, ids, are_first): moves tasks of one topic from `due` to their list, and counts them.
-- They may be the first of `due`. The removal comes first: then the server does not refuse the rest for want of memory, and a full one
-- drains. A list that refuses leaves them due, as of now.
-- RETURNS the error of the list; nil without one
local function becomes_ready(lanes, due, counts, list, topic, ids, are_first)
  if LANES then leave_lanes(ids) end
  if are_first then
    redis.call('ZREMRANGEBYRANK', due, 0, #ids - 1)
  else
    redis.call('ZREM', due, unpack(ids))
  end
  local pushed = redis.pcall('RPUSH', list, unpack(ids))
  if type(pushed) ~= 'table' then
    local count = redis.pcall('HINCRBY', counts, topic, #ids)
    if pushed == #ids and type(count) == 'number' then note_began(topic, count) end
    return nil
  end
  local back, keyed_back = {}, {}
  for _, id in ipairs(ids) do
    if LANES and lane_of(id) then
      keyed_back[#keyed_back + 1] = id
    else
      back[#back + 1], back[#back + 2] = now_ms, id
    end
  end
  if #keyed_back > 0 then
    takes_back(lanes, keyed_back, now_ms)
    frees(lanes, keyed_back)
  end
  if #back > 0 then redis.call('ZADD', due, unpack(back)) end
  return pushed
end
