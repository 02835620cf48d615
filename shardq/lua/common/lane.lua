-- A task with a key passes no clock of its own: its lane does. The id of one is TOPIC/KEY/UNIQUE, and 'TOPIC/KEY/' its lane.
-- An engine that has keys gives six more KEYS: keys, placed, alarms, rests, holds, gates. What of a lane waits is in `due`, at FAR
-- behind its due time, where no clock comes, and in `keys`, as LANE, its due time in 15 digits, '/' and UNIQUE; in front of
-- all others of its lane with zeros. What is ready or leased is in `placed`: no counter stands beside it. `alarms` has the
-- instant at which a lane can give its next; none while it is full, or has nothing. Too early an alarm is set right by
-- dispatch; none is ever too late, or lacks. Uses topic.
local FRONT = '000000000000000'
local LANES, DUE = true, nil
-- lanes_from(position, due): says where these six KEYS begin, and which one is `due`. A key of the wrong type fails here, before
-- anything is written.
-- RETURNS true
local function lanes_from(position, due)
  LANES, DUE = position, due
  for i = position, position + 3 do redis.call('ZCARD', KEYS[i]) end
  redis.call('HLEN', KEYS[position + 4])
  redis.call('HLEN', KEYS[position + 5])
  return true
end
-- lane_of(id): the lane of an id.
-- RETURNS the lane; nil for an id without a key
local function lane_of(id) return string.match(id, '^[^/]*/[^/]+/') end
-- bounds_of(lane): the members of a ZSET in lexical order that begin with a lane: a key has no slash, and '0' follows it.
-- RETURNS the words of the first, and behind the last
local function bounds_of(lane) return '[' .. lane, '(' .. string.sub(lane, 1, -2) .. '0' end
-- entry_of(id, lane, at_ms): the member of keys of a task that waits; without an instant that of one at the front.
-- RETURNS the member
local function entry_of(id, lane, at_ms)
  return lane .. (at_ms and string.format('%015.0f', at_ms) or FRONT) .. string.sub(id, #lane)
end
-- id_of(entry, lane): the id of such a member.
-- RETURNS the id
local function id_of(entry, lane) return lane .. string.sub(entry, #lane + 17) end
local windows = {}
-- window_of(lane): what `meta` says of the lanes of a topic.
-- RETURNS how many may be out at once; ms between two, 0 without a rate; true when what failed goes to the front
local function window_of(lane)
  local topic = topic_of(lane)
  local window = windows[topic]
  if not window then
    local most, interval, mode = string.match(redis.call('HGET', KEYS[1], 'keys/' .. topic) or '', '^(%d+):([%d.]+):(%a+)$')
    window = {math.max(1, tonumber(most or 1)), tonumber(interval or 0), mode ~= 'skip'}
    windows[topic] = window
  end
  return window[1], window[2], window[3] and window[1] == 1
end
-- due_of(entry, lane): the instant before which a task that waits is not given. At the front it is that of its retry, as
-- `due` has it; 0 where the body has no `due`.
-- RETURNS ms
local function due_of(entry, lane)
  local at = string.sub(entry, #lane + 1, #lane + 15)
  if at ~= FRONT then return tonumber(at) end
  return math.max(0, tonumber(DUE and redis.call('ZSCORE', KEYS[DUE], id_of(entry, lane)) or 0) - FAR)
end
-- rest_of(lane): the instant before which a lane gives nothing: for its rate, or a hold. A rest that is more than its window
-- of intervals ahead is of a clock that went back.
-- RETURNS ms
local function rest_of(lane)
  local most, interval = window_of(lane)
  local rest = tonumber(redis.call('ZSCORE', KEYS[LANES + 3], lane) or 0)
  if interval > 0 and rest > now_ms + most * interval then rest = now_ms end
  return math.max(rest, tonumber(redis.call('HGET', KEYS[LANES + 4], lane) or 0))
end
-- rest(lane, until_ms, held): has a lane give nothing until then; for its rate, or `held`.
-- RETURNS nothing
local function rest(lane, until_ms, held)
  if held then
    redis.call('HSET', KEYS[LANES + 4], lane, string.format('%.0f', until_ms))
  else
    redis.call('ZADD', KEYS[LANES + 3], 'GT', string.format('%.3f', until_ms), lane)
  end
end
local change
-- gate_of(lane): what a change of the number of shards, as long as it goes on, has said of a lane.
-- RETURNS closed: it is leaving, nothing of it is given here any more | shut: it is not here yet | open: it is here; nil for one
--         that it has said nothing of
local function gate_of(lane)
  local gate = redis.call('HGET', KEYS[LANES + 5], lane)
  if not gate then return nil end
  change = change or redis.call('HMGET', KEYS[1], 'since', 'numbers')
  local said, since = string.match(gate, '^(%a+):(%d+)$')
  return since == change[1] and string.find(change[2] or '', ',', 1, true) and said or nil
end
-- say(lane, what): sets the gate of a lane.
-- RETURNS nothing
local function say(lane, what)
  redis.call('HSET', KEYS[LANES + 5], lane, what .. ':' .. (redis.call('HGET', KEYS[1], 'since') or '0'))
end
-- shut_lane(lane): something of a lane has come here in a change that moves it. It gives nothing until it is opened. A hold that
-- is here is from earlier times: the one that counts comes along.
-- RETURNS nothing
local function shut_lane(lane)
  if gate_of(lane) then return end
  redis.call('HDEL', KEYS[LANES + 4], lane)
  say(lane, 'shut')
end
-- ring(lane): sets the alarm of a lane.
-- RETURNS its instant in ms; nil without one
local function ring(lane)
  local low, high = bounds_of(lane)
  local out, most, gate, first = redis.call('ZLEXCOUNT', KEYS[LANES + 1], low, high), (window_of(lane)), gate_of(lane), nil
  if out < most and gate ~= 'closed' and gate ~= 'shut' then
    -- what was replaced while it was leased waits for the end of the place it had: others pass it
    for _, entry in ipairs(redis.call('ZRANGEBYLEX', KEYS[LANES], low, high, 'LIMIT', 0, out + 1)) do
      first = first or not redis.call('ZSCORE', KEYS[LANES + 1], id_of(entry, lane)) and entry
    end
  end
  if not first then
    redis.call('ZREM', KEYS[LANES + 2], lane)
    return nil
  end
  local at = math.max(due_of(first, lane), rest_of(lane))
  redis.call('ZADD', KEYS[LANES + 2], string.format('%.3f', at), lane)
  return at
end
-- ring_all(lanes): sets the alarms of lanes: lane -> true.
-- RETURNS the earliest, ms; math.huge without one
local function ring_all(lanes)
  local first, sorted = math.huge, {}
  for lane in pairs(lanes) do sorted[#sorted + 1] = lane end
  table.sort(sorted)
  for _, lane in ipairs(sorted) do first = math.min(first, ring(lane) or math.huge) end
  return first
end
-- enter_lane(id, lane, at_ms, front): has a task wait in its lane; `front`: before all others. The body rings the lane.
-- RETURNS nothing
local function enter_lane(id, lane, at_ms, front)
  redis.call('ZADD', KEYS[DUE], far(at_ms), id)
  redis.call('ZADD', KEYS[LANES], 0, entry_of(id, lane, not front and at_ms))
end
-- leave_lane(id, lane, score): takes a task that waits out of its lane, by its score in `due`.
-- RETURNS nothing
local function leave_lane(id, lane, score)
  redis.call('ZREM', KEYS[LANES], entry_of(id, lane), entry_of(id, lane, score - FAR))
end
-- free_places(ids, lanes): takes away the places of ids that are not ready or leased any more, and notes their lanes in `lanes`, to
-- be rung. Whoever had none loses none.
-- RETURNS nothing
local function free_places(ids, lanes)
  local keyed = {}
  for _, id in ipairs(ids) do
    local lane = lane_of(id)
    if lane then
      keyed[#keyed + 1] = id
      lanes[lane] = true
    end
  end
  if #keyed == 0 then return end
  redis.call('ZREM', KEYS[LANES + 1], unpack(keyed))
end
-- revoked_ends(id, lanes): a replacing push has revoked the lease of an id, whose place was kept for its handler, by an alarm
-- of its own: takes both away, once.
-- RETURNS nothing
local function revoked_ends(id, lanes)
  if redis.call('ZREM', KEYS[LANES + 2], id) == 1 then free_places({id}, lanes) end
end
