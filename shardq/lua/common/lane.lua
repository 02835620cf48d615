-- A task with a key passes no clock of its own: its lane does. The id of one is TOPIC/KEY/UNIQUE, and 'TOPIC/KEY/' its lane.
-- An engine that has keys gives six more KEYS: keys, placed, alarms, rests, holds, gates. What of a lane waits is in `due`, at FAR
-- behind its due time, where no clock comes, and in `keys`, as LANE, its due time in 15 digits, '/' and UNIQUE; in front of
-- all others of its lane with '-' and the number under which it had left, in 14 digits. What is ready or leased is in `placed`: no
-- counter stands beside it. The number is in `rests` while the task is out, below zero; who left while no other of the lane was out
-- has none, which is 0. In a topic with a rate, what is ready and was not taken is in `placed` once more, with '!' before its id:
-- who takes it away by another way than a claim or a forwarding gives the turn back by that. `alarms` has the instant at which a
-- lane can give its next. Too early an alarm is set right by dispatch; none is ever too late, or lacks.
--
-- This file says what a lane has: its names, its rules, how many of it are out, and what goes next. kept.lua says what keeps it from
-- giving, and changes.lua what becomes of it. Uses topic.
local FRONT = '-' -- before all digits
local FRONT_BYTE = string.byte(FRONT)
local READY = '!' -- before all lanes
-- A turn that is late by no more than this is made up for; so long a time of a rate may be ready and not taken.
local LATE_MS = 50
local LANES, DUE = true
-- What this script knows of lanes, false for none. With `all`, that is none of any other. Who changes it notes it here as well.
local rests, holds, gates = {}, {}, {}
local untaken, entered
-- What was read of `keys`, from a lane on: its entries, the lane that was found last or asked first, the place of its first entry (0 for
-- none), how many lanes were found, and how many entries to read at once. A change of `keys` sets stretch_lane to nil.
local stretch, stretch_lane, stretch_at, stretch_found
local stretch_most = 16
-- lanes_from(position, due): says where these six KEYS begin, and which one is `due`. A key of the wrong type fails here, before
-- anything is written.
-- RETURNS true
local function lanes_from(position, due)
  LANES, DUE = position, due
  entered = redis.call('ZCARD', KEYS[position])
  redis.call('ZCARD', KEYS[position + 2])
  untaken = redis.call('ZLEXCOUNT', KEYS[position + 1], '-', '("')
  rests.count, holds.count = redis.call('ZCARD', KEYS[position + 3]), redis.call('HLEN', KEYS[position + 4])
  gates.count = redis.call('HLEN', KEYS[position + 5])
  rests.all, holds.all, gates.all = rests.count == 0, holds.count == 0, gates.count == 0
  return true
end
local find_in, part_of = string.find, string.sub -- looked up once: all ids are asked, also those without a key
-- lane_of(id): the lane of an id.
-- RETURNS the lane; nil for an id without a key
local function lane_of(id)
  local topic = find_in(id, '/', 1, true)
  local key = topic and find_in(id, '/', topic + 1, true)
  return key and key > topic + 1 and part_of(id, 1, key) or nil
end
local bounded, low_word, high_word -- of the lane that was asked for last: a body asks several times for one, and then for the next
-- bounds_of(lane): the members of a ZSET in lexical order that begin with a lane: a key has no slash, and '0' follows it.
-- RETURNS the words of the first, and behind the last
local function bounds_of(lane)
  if lane ~= bounded then bounded, low_word, high_word = lane, '[' .. lane, '(' .. string.sub(lane, 1, -2) .. '0' end
  return low_word, high_word
end
local told_ms, digits -- many of a call are due at one instant
-- entry_of(id, lane, at_ms, number): the member of keys of a task that waits; with a number that of one at the front.
-- RETURNS the member
local function entry_of(id, lane, at_ms, number)
  if number then return lane .. FRONT .. string.format('%014.0f', number) .. string.sub(id, #lane) end
  if at_ms ~= told_ms then told_ms, digits = at_ms, string.format('%015.0f', at_ms) end
  return lane .. digits .. string.sub(id, #lane)
end
-- number_of(entry, lane): the number under which a task at the front had left.
-- RETURNS the number; nil for one that is not at the front
local function number_of(entry, lane)
  if string.byte(entry, #lane + 1) ~= FRONT_BYTE then return nil end
  return tonumber(string.sub(entry, #lane + 2, #lane + 15)) or 0
end
-- id_of(entry, lane): the id of such a member.
-- RETURNS the id
local function id_of(entry, lane) return lane .. string.sub(entry, #lane + 17) end
local fronts = {}
-- front_of(id, lane): the member of keys of a task at the front. There are no more of a lane than were out at a
-- time, a thousand.
-- RETURNS the member; nil for one that is not at the front
local function front_of(id, lane)
  local front = fronts[lane]
  if not front then
    front = {}
    for _, entry in ipairs(redis.call('ZRANGEBYLEX', KEYS[LANES], '[' .. lane .. FRONT, '(' .. lane .. '0', 'LIMIT', '0', '5000')) do
      front[id_of(entry, lane)] = entry
    end
    fronts[lane] = front
  end
  return front[id]
end
local windows, last_rules = {}, {prefix = ''} -- by topic; most lanes of a call are of one
-- rules_of(lane): what `meta` says of the lanes of a topic, as a table: `most`, `interval`, `front` and `lowered`, which window_of returns,
-- and `topic`.
-- RETURNS the table
local function rules_of(lane)
  if last_rules.topic and string.sub(lane, 1, #last_rules.prefix) == last_rules.prefix then return last_rules end
  local topic = topic_of(lane)
  local rules = windows[topic]
  if not rules then
    local told = redis.call('HMGET', KEYS[1], 'keys/' .. topic, 'lowered/' .. topic)
    local most, interval, mode = string.match(told[1] or '', '^(%d+):([%d.]+):(%a+)$')
    rules = {topic = topic, most = math.max(1, tonumber(most or 1)), interval = tonumber(interval or 0), lowered = told[2]}
    rules.front, rules.prefix = mode ~= 'skip' and rules.most == 1, topic .. '/'
    windows[topic] = rules
  end
  last_rules = rules
  return rules
end
-- window_of(lane): the window of a lane.
-- RETURNS how many may be out at once; ms between two, 0 without a rate; true when what failed goes to the front; where the limit was
--         lowered, the lane from which on there may be lanes with more out than that, '' for all; false where it was not
local function window_of(lane)
  local rules = rules_of(lane)
  return rules.most, rules.interval, rules.front, rules.lowered
end
-- is_rated(lane): tells if tasks of a lane that are ready may have a mark: it has a rate, or had one.
-- RETURNS true | false
local function is_rated(lane)
  local rules = rules_of(lane)
  return rules.interval > 0 or untaken > 0 and rules.lowered ~= false
end
local outs -- lane → how many of it are out, of all lanes that have any out; nil for unknown, as after each change
-- count_out(lanes, in_order): counts what is ready or leased of many lanes by one call, where that costs less than a call for each of
-- these: of all lanes from the first to the last, where they stand in the order of their names, else of all in the shard.
-- RETURNS nothing
local function count_out(lanes, in_order)
  if #lanes < 4 then return end
  local low, high, count = '["', '+'
  if in_order then
    local last = lanes[#lanes]
    low, high = '[' .. lanes[1], '(' .. string.sub(lane_of(last), 1, -2) .. '0'
    count = redis.call('ZLEXCOUNT', KEYS[LANES + 1], low, high)
  else
    count = redis.call('ZCARD', KEYS[LANES + 1]) - untaken
  end
  if count > 2 * #lanes then return end
  outs = {}
  for _, id in ipairs(count > 0 and redis.call('ZRANGEBYLEX', KEYS[LANES + 1], low, high, 'LIMIT', 0, 2 * #lanes) or {}) do
    local lane = lane_of(id)
    if lane then outs[lane] = (outs[lane] or 0) + 1 end
  end
end
-- out_of(lane): how many tasks of a lane are ready or leased.
-- RETURNS the number
local function out_of(lane)
  if outs then return outs[lane] or 0 end
  local low, high = bounds_of(lane)
  return redis.call('ZLEXCOUNT', KEYS[LANES + 1], low, high)
end
-- ready_of(lane): how many of a lane with a rate are ready, and not taken.
-- RETURNS the number
local function ready_of(lane)
  if untaken == 0 then return 0 end
  return redis.call('ZLEXCOUNT', KEYS[LANES + 1], '[' .. READY .. lane, '(' .. READY .. string.sub(lane, 1, -2) .. '0')
end
-- most_ready(interval): how many of a lane with a rate may be ready, and not taken.
-- RETURNS the number
local function most_ready(interval) return math.max(1, math.floor(LATE_MS / interval)) end
-- first_of(lane): what of a lane goes first, whether it is out or not. Lanes that are asked one after the other often stand so in
-- `keys`: one call reads the first of many, as long as that was of use.
-- RETURNS its member of keys; nil if nothing waits
local function first_of(lane)
  if entered == 0 then return nil end
  local length = #lane
  if stretch_lane then
    if lane == stretch_lane then return stretch[stretch_at] end
    for i = stretch_at + 1, math.min(stretch_at + 8, #stretch) do
      if string.sub(stretch[i], 1, length) == lane then
        stretch_lane, stretch_at, stretch_found = lane, i, stretch_found + 1
        return stretch[i]
      end
    end
    -- nothing waits of a lane between the last one and the next entry
    local following, same = stretch[stretch_at + 1], #rules_of(lane).prefix
    if following or #stretch < stretch_most then
      if string.sub(stretch_lane, 1, same) ~= last_rules.prefix then same = 0 end
      local is_behind = follows(lane, stretch_lane, same)
      if following and string.sub(following, 1, same) ~= last_rules.prefix then same = 0 end
      if is_behind and (not following or follows(following, lane, same)) then return nil end
    end
    if (stretch_found - 1) * 8 >= #stretch then
      stretch_most = math.min(stretch_most * 2, 256)
    elseif stretch_found < 2 then
      stretch_most = 1
    end
  end
  stretch = redis.call('ZRANGEBYLEX', KEYS[LANES], '[' .. lane, '+', 'LIMIT', '0', stretch_most == 1 and '1' or stretch_most)
  stretch_lane, stretch_at, stretch_found = lane, 0, 0
  if not stretch[1] or string.sub(stretch[1], 1, length) ~= lane then return nil end
  stretch_at, stretch_found = 1, 1
  return stretch[1]
end
-- next_of(lane, out, most): what of a lane goes next, in order. What was replaced while it was leased waits for the end of the
-- place it had: others pass it.
-- RETURNS its members of keys, at most so many
local function next_of(lane, out, most)
  if out == 0 and most == 1 then return {first_of(lane)} end
  local low, high = bounds_of(lane)
  local found, at = {}, 0
  while #found < most do
    local read, ids = redis.call('ZRANGEBYLEX', KEYS[LANES], low, high, 'LIMIT', at, most - #found), {}
    if out == 0 then return read end
    if #read == 0 then break end
    for i, entry in ipairs(read) do ids[i] = id_of(entry, lane) end
    for i, placed in ipairs(redis.call('ZMSCORE', KEYS[LANES + 1], unpack(ids))) do
      if not placed then found[#found + 1] = read[i] end
    end
    at = at + #read
  end
  return found
end
-- score_of(entry, lane): the score in `due` of a task that waits, which is not at the front: FAR and its due time.
-- RETURNS the word
local function score_of(entry, lane) return '4' .. string.sub(entry, #lane + 1, #lane + 15) end
local all_wait -- what has a member in keys is in `due`, too: so it is, unless another program has written there
-- is_waiting(id): tells if a task that has a member in keys is in `due`, too. Asked for each only where both do not have the same number.
-- RETURNS true | false
local function is_waiting(id)
  if all_wait == nil then all_wait = redis.call('ZCOUNT', KEYS[DUE], FAR, '+inf') == entered end
  return all_wait or redis.call('ZSCORE', KEYS[DUE], id) and true or false
end
local instants = {} -- of due times as they stand in keys: many wait for one
-- due_of(entry, lane): the instant before which a task that waits is not given. At the front it is that of its retry, as
-- `due` has it; 0 where the body has no `due`.
-- RETURNS ms, and its number if it is at the front
local function due_of(entry, lane)
  local word = string.sub(entry, #lane + 1, #lane + 15)
  local at = instants[word]
  if at then return at end
  local number = number_of(entry, lane)
  if not number then
    at = tonumber(string.match(word, '^%d+$') or 0)
    instants[word] = at
    return at
  end
  return (DUE and redis.call('ZSCORE', KEYS[DUE], id_of(entry, lane)) or FAR) - FAR, number
end
