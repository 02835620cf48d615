-- A task with a key passes no clock of its own: its lane does. The id of one is TOPIC/KEY/UNIQUE, and 'TOPIC/KEY/' its lane.
-- An engine that has keys gives six more KEYS: keys, placed, alarms, rests, holds, gates. What of a lane waits is in `due`, at FAR
-- behind its due time, where no clock comes, and in `keys`, as LANE, its due time in 15 digits, '/' and UNIQUE; in front of
-- all others of its lane with '-' and the number under which it had left, in 14 digits. What is ready or leased is in `placed`: no
-- counter stands beside it. The number is in `rests` while the task is out, below zero; who left while no other of the lane was out
-- has none, which is 0. In a topic with a rate, what is ready and was not taken is in `placed` once more, with '!' before its id:
-- who takes it away by another way than a claim or a forwarding gives the turn back by that. `alarms` has the instant at which a
-- lane can give its next. Too early an alarm is set right by dispatch; none is ever too late, or lacks.
--
-- A lane takes in, lets go, gives (dispatch alone) and frees, and the body notes it. At its end the body rings the lanes that it
-- noted: each once, with what one call tells of many asked by one call. Uses topic.
local FRONT = '-' -- before all digits
local FRONT_BYTE = string.byte(FRONT)
local READY = '!' -- before all lanes
-- A turn that is late by no more than this is made up for; so long a time of a rate may be ready and not taken.
local LATE_MS = 50
local LANES, DUE = true, nil
-- What this script knows of lanes, false for none. With `all`, that is none of any other. Who changes it notes it here as well.
local rests, holds, gates = {}, {}, {}
local untaken, entered = 0, 0
-- What was read of `keys`, from a lane on: its entries, the lane that was found last or asked first, the place of its first entry (0 for
-- none), how many lanes were found, and how many entries to read at once. A change of `keys` sets stretch_lane to nil.
local stretch, stretch_lane, stretch_at, stretch_found, stretch_most = {}, nil, 0, 0, 16
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
-- lane_of(id): the lane of an id.
-- RETURNS the lane; nil for an id without a key
local function lane_of(id) return string.match(id, '^[^/]*/[^/]+/') end
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
  return rules.interval > 0 or untaken > 0 and rules.lowered and true or false
end
local outs -- lane → how many of it are out, of all lanes that have any out; nil for unknown, as after each change
-- count_out(lanes, in_order): counts what is ready or leased of many lanes by one call, where that costs less than a call for each of
-- these: of all lanes from the first to the last, where they stand in the order of their names, else of all in the shard.
-- RETURNS nothing
local function count_out(lanes, in_order)
  if #lanes < 4 then return end
  local low, high, count = '["', '+', nil
  if in_order then
    local last = lanes[#lanes]
    low, high = '[' .. lanes[1], '(' .. string.sub(lane_of(last) or last, 1, -2) .. '0'
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
      if is_behind and not (following and string.sub(following, 1, same) == last_rules.prefix) then same = 0 end
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
  local read = redis.call('ZRANGEBYLEX', KEYS[LANES], low, high, 'LIMIT', '0', most)
  if out == 0 or #read == 0 then return read end
  local found, at = {}, 0
  repeat
    local ids = {}
    for i, entry in ipairs(read) do ids[i] = id_of(entry, lane) end
    for i, placed in ipairs(redis.call('ZMSCORE', KEYS[LANES + 1], unpack(ids))) do
      if not placed then found[#found + 1] = read[i] end
    end
    if #found == most then break end
    at = at + #read
    read = redis.call('ZRANGEBYLEX', KEYS[LANES], low, high, 'LIMIT', at, most - #found)
  until #read == 0
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
    at = tonumber(word)
    instants[word] = at
    return at
  end
  return math.max(0, tonumber(DUE and redis.call('ZSCORE', KEYS[DUE], id_of(entry, lane)) or 0) - FAR), number
end
-- read_fields(known, key, lanes): reads the fields of lanes in a HASH; all of its fields where that takes less: these are fewer, or no
-- more than a server keeps in one run (512), which it would search from the start for each of the lanes.
-- RETURNS nothing
local function read_fields(known, key, lanes)
  if known.all then return end
  if known.count > (known.count <= 512 and 8 or 1) * #lanes then
    local found = redis.call('HMGET', key, unpack(lanes))
    for i, lane in ipairs(lanes) do known[lane] = found[i] end
  else
    local found = redis.call('HGETALL', key)
    for i = 1, #found, 2 do known[found[i]] = found[i + 1] end
    known.all = true
  end
end
-- look_at(lanes, unrated): reads what keeps lanes from giving, by one call for all of a kind, and by none where the shard has nothing of
-- it. `unrated`: none of them has a rate.
-- RETURNS nothing
local function look_at(lanes, unrated)
  if #lanes == 0 then return end
  read_fields(holds, KEYS[LANES + 4], lanes)
  read_fields(gates, KEYS[LANES + 5], lanes)
  if rests.all or unrated then return end
  local rated = {}
  for _, lane in ipairs(lanes) do
    if rules_of(lane).interval > 0 then rated[#rated + 1] = lane end
  end
  local found = #rated > 0 and redis.call('ZMSCORE', KEYS[LANES + 3], unpack(rated)) or {}
  for i, lane in ipairs(rated) do rests[lane] = found[i] end
end
-- hold_of(lane): the hold of a lane, as it is stored.
-- RETURNS the instant of its end, ms, and for how many it was asked for; 0 and 0 without one
local function hold_of(lane)
  if holds[lane] == nil and not holds.all then look_at({lane}) end
  if not holds[lane] then return 0, 0 end
  local ends, asked = string.match(holds[lane], '^(%d+):(%d+)$')
  return tonumber(ends or 0), tonumber(asked or 0)
end
-- held_of(lane): the instant before which a lane gives nothing for a hold. An end that is further ahead than the hold was asked for is
-- of a clock that went back: it counts from now on.
-- RETURNS ms
local function held_of(lane)
  local ends, asked = hold_of(lane)
  return math.min(ends, now_ms + asked)
end
-- hold(lane, until_ms): has a lane give nothing until then, and notes how long that is; without an instant, its hold is over.
-- RETURNS nothing
local function hold(lane, until_ms)
  holds[lane] = until_ms and string.format('%.0f:%.0f', until_ms, math.max(0, until_ms - now_ms)) or false
  if until_ms then
    redis.call('HSET', KEYS[LANES + 4], lane, holds[lane])
  else
    redis.call('HDEL', KEYS[LANES + 4], lane)
  end
end
-- turn_of(lane): the instant of the last turn of a lane with a rate. One that is more than its window of intervals ahead is of a
-- clock that went back.
-- RETURNS ms
local function turn_of(lane)
  local most, interval = window_of(lane)
  if rests[lane] == nil and not rests.all then look_at({lane}) end
  local turn = tonumber(rests[lane] or 0)
  return turn > now_ms + (math.max(most, most_ready(interval)) - 1) * interval and now_ms - interval or turn
end
-- rest_of(lane): the instant before which a lane gives nothing: for a hold, or its rate, as it is now, from its last turn on. What is
-- ready has its turn before.
-- RETURNS ms; math.huge until something of it is taken
local function rest_of(lane)
  local _, interval = window_of(lane)
  if interval == 0 then return held_of(lane) end
  local ready = ready_of(lane)
  if ready >= most_ready(interval) then return math.huge end
  return math.max(turn_of(lane) + (ready + 1) * interval, held_of(lane))
end
-- is_kept(lane): tells if there may be a hold or a gate that keeps a lane from giving.
-- RETURNS true | false
local function is_kept(lane) return not (holds.all and gates.all) or holds[lane] or gates[lane] end
-- note_turn(lane, at_ms): notes the instant of a turn that a lane has had, unless a later one is known.
-- RETURNS nothing
local function note_turn(lane, at_ms)
  rests[lane], rests.all, rests.count = nil, false, rests.count + 1
  redis.call('ZADD', KEYS[LANES + 3], 'GT', string.format('%.3f', at_ms), lane)
end
local change
-- gate_of(lane): what a change of the number of shards, as long as it goes on, has said of a lane.
-- RETURNS closed: it is leaving, nothing of it is given here any more | shut: it is not here yet | open: it is here; nil for one
--         that it has said nothing of
local function gate_of(lane)
  if gates[lane] == nil and not gates.all then look_at({lane}) end
  if not gates[lane] then return nil end
  change = change or redis.call('HMGET', KEYS[1], 'since', 'numbers')
  local said, since = string.match(gates[lane], '^(%a+):(%d+)$')
  return since == change[1] and string.find(change[2] or '', ',', 1, true) and said or nil
end
-- say(lane, what): sets the gate of a lane. It has no alarm unless it is open.
-- RETURNS nothing
local function say(lane, what)
  gates[lane] = what .. ':' .. (redis.call('HGET', KEYS[1], 'since') or '0')
  redis.call('HSET', KEYS[LANES + 5], lane, gates[lane])
  if what ~= 'open' then redis.call('ZREM', KEYS[LANES + 2], lane) end
end
-- shut_lane(lane): something of a lane has come here in a change that moves it. It gives nothing until it is opened. A hold that
-- is here is from earlier times: the one that counts comes along.
-- RETURNS nothing
local function shut_lane(lane)
  if gate_of(lane) then return end
  hold(lane)
  say(lane, 'shut')
end
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
  if number then fronts[lane] = nil end
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
  rests.all = false
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
  local first, rest = nil, 0
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
  local earliest, told, word = math.huge, nil, nil
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
