-- Tasks become ready: dispatch gives what is due, and settle the next task of a lane in which it has freed a place. What of one topic
-- becomes ready in a call is a group: a list of ids, those without a key first. Of those with one it knows `entries`, their members of
-- `keys`, and `since`, the instants from which on they were due, in order; and `numbered`, those that leave under a number: as others of
-- their lane are out, or they have one. Uses count, topic, lane, kept, changes.
local turn_by_lane = {} -- the instant of the last turn of a lane, where that is set anew: one of it leaves then
-- new_group(): a group that is empty.
-- RETURNS the group
local function new_group() return {entries = {}, since = {}, numbered = {}} end
-- joins(group, id, entry, at_ms, number, out): the next task of a lane, of which so many are out, is to become ready. The number is that
-- of one at the front.
-- RETURNS nothing
local function joins(group, id, entry, at_ms, number, out)
  local entries = group.entries
  local n = #entries + 1
  group[#group + 1], entries[n], group.since[n] = id, entry, at_ms
  if out > 0 or number and number > 0 then
    local numbered = group.numbered
    numbered[#numbered + 1], numbered[#numbered + 2] = id, number or false
  end
end
-- note_numbers(numbered): under which number these leave their lanes: one from the front under the one that it has, others under a new one.
-- RETURNS nothing
local function note_numbers(numbered)
  local last, words = count_of(redis.call('HGET', KEYS[1], 'left')), {}
  for i = 1, #numbered, 2 do
    local number = numbered[i + 1]
    if not number then
      last = last + 1
      number = last
    end
    words[i], words[i + 1] = -number, numbered[i]
  end
  redis.call('HSET', KEYS[1], 'left', string.format('%.0f', last))
  redis.call('ZADD', KEYS[LANES + 3], unpack(words))
  rests.count = rests.count + #numbered -- asked only if there are any
end
-- leave_lanes(group): the keyed ones of these leave their lanes for their places.
-- RETURNS nothing
local function leave_lanes(group)
  local entries, places, at = group.entries, {}, 0
  if #entries == 0 then return end
  for i = #group - #entries + 1, #group do
    places[at + 1], places[at + 2], at = '0', group[i], at + 2
  end
  local noted = {}
  if rules_of(lane_of(group[#group])).interval > 0 then
    untaken = untaken + #entries
    for i = #group - #entries + 1, #group do
      local lane = lane_of(group[i])
      places[at + 1], places[at + 2], at = '0', READY .. group[i], at + 2
      if turn_by_lane[lane] then
        rests[lane] = turn_by_lane[lane]
        noted[#noted + 1], noted[#noted + 2] = string.format('%.3f', turn_by_lane[lane]), lane
      end
    end
  end
  outs = nil
  leaves(entries)
  redis.call('ZADD', KEYS[LANES + 1], unpack(places))
  if #noted > 0 then redis.call('ZADD', KEYS[LANES + 3], unpack(noted)) end
  if #group.numbered > 0 then note_numbers(group.numbered) end
end
-- note_began(topic, count): of a list that was empty the head is known to have come now.
-- RETURNS nothing
local function note_began(topic, count)
  local field = 'began/' .. topic
  redis.pcall('HSET', KEYS[1], field, string.format('%.0f:%.0f', count, now_ms))
end
-- becomes_ready(lanes, due, counts, list, topic, group, are_first): moves tasks of one topic from `due` to their list, and counts them.
-- They may be the first of `due`. The removal comes first: then the server does not refuse the rest for want of memory, and a full one
-- drains. A list that refuses leaves them due, as of now.
-- RETURNS the error of the list; nil without one
local function becomes_ready(lanes, due, counts, list, topic, group, are_first)
  leave_lanes(group)
  if are_first then
    redis.call('ZREMRANGEBYRANK', due, 0, #group - 1)
  else
    redis.call('ZREM', due, unpack(group))
  end
  local pushed = redis.pcall('RPUSH', list, unpack(group))
  if type(pushed) ~= 'table' then
    local count = redis.pcall('HINCRBY', counts, topic, #group)
    if pushed == #group and type(count) == 'number' then note_began(topic, count) end
    return nil
  end
  local back, plain = {}, #group - #group.entries
  for i = 1, plain do back[#back + 1], back[#back + 2] = now_ms, group[i] end
  if plain < #group then
    local keyed_back = {unpack(group, plain + 1)}
    takes_back(lanes, keyed_back, now_ms)
    frees(lanes, keyed_back)
  end
  if #back > 0 then redis.call('ZADD', due, unpack(back)) end
  return pushed
end
