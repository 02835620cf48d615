-- What keeps a lane from giving, apart from what of it is out: a hold, the last turn of a lane with a rate, and the gate of one that moves
-- to another shard. Uses topic, lane.
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
  local ends, asked = string.match(holds[lane] or '', '^(%d+):(%d+)$')
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
-- turn_of(lane): the instant of the last turn of a lane with a rate, at which look_at has looked. One that is more than its window of
-- intervals ahead is of a clock that went back.
-- RETURNS ms
local function turn_of(lane)
  local most, interval = window_of(lane)
  local turn = tonumber(rests[lane] or 0)
  return turn > now_ms + (math.max(most, most_ready(interval)) - 1) * interval and now_ms - interval or turn
end
-- rest_of(lane): the instant before which a lane that is not on hold gives nothing for its rate, as that is now, from its last turn
-- on. What is ready has its turn before.
-- RETURNS ms, 0 without a rate; math.huge until something of it is taken
local function rest_of(lane)
  local _, interval = window_of(lane)
  if interval == 0 then return 0 end
  local ready = ready_of(lane)
  if ready >= most_ready(interval) then return math.huge end
  return turn_of(lane) + (ready + 1) * interval
end
-- is_kept(lane): tells if a lane, at which look_at has looked, has a hold or a gate, which may keep it from giving.
-- RETURNS the word of either; false or nil without one
local function is_kept(lane) return holds[lane] or gates[lane] end
-- note_turn(lane, at_ms): notes the instant of a turn that a lane has had, unless a later one is known.
-- RETURNS nothing
local function note_turn(lane, at_ms)
  redis.call('ZADD', KEYS[LANES + 3], 'GT', string.format('%.3f', at_ms), lane)
  rests.all = false -- look_at reads which one it is
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
  return since == change[1] and string.find(change[2] or '', ',') and said or nil
end
-- say(lane, what): sets the gate of a lane, and takes its alarm away: that of an open one is set by rings.
-- RETURNS nothing
local function say(lane, what)
  gates[lane] = what .. ':' .. (redis.call('HGET', KEYS[1], 'since') or '0')
  redis.call('HSET', KEYS[LANES + 5], lane, gates[lane])
  redis.call('ZREM', KEYS[LANES + 2], lane)
end
-- shut_lane(lane): something of a lane has come here in a change that moves it. It gives nothing until it is opened. A hold that
-- is here is from earlier times: the one that counts comes along.
-- RETURNS nothing
local function shut_lane(lane)
  if gate_of(lane) then return end
  hold(lane)
  say(lane, 'shut')
end
