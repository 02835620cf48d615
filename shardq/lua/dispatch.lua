-- dispatch: moves due tasks to their ready lists, takes back leases that ran out, removes dedup windows that ended, and
-- says when to call again. Looks over the lanes of a topic whose window has changed.
-- USES: epoch, guard, count, steady, begin, lease, topic, die, draw, lane, kept, changes, give, wait
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- KEYS 3 topics HASH
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 seen ZSET
-- KEYS 9.. ready LIST, one for each topic of ARGV 8..
-- KEYS 9+topics.. waiting ZSET, likewise
-- KEYS 9+2*topics keys ZSET, where the engine has keys
-- KEYS 10+2*topics placed ZSET, where the engine has keys
-- KEYS 11+2*topics alarms ZSET, where the engine has keys
-- KEYS 12+2*topics rests ZSET, where the engine has keys
-- KEYS 13+2*topics holds HASH, where the engine has keys
-- KEYS 14+2*topics gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 how many to move at most, up to 1,000
-- ARGV 4 attempts allowed to a task that brings no limit of its own
-- ARGV 5 prefix of the wake channels of this shard; a process's name follows
-- ARGV 6 bell channel, or '' without routed topics
-- ARGV 7 the caller, by a name of this connection alone, or '' without routed topics. A caller that moves something of a
--         routed topic rings the bell when another called last: that one sleeps, and this one may be about to leave
-- ARGV 8.. topics whose lists are given, at most 64; a paused one has '!' in front, a routed one '>': these wake nobody
-- RETURNS {'ok', name, value, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}: moved, reaped, buried; oldest, newest,
--         the lateness of these two that were moved without a key in ms, -1 when none was; next_ms, the next instant of
--         interest or ''; now_us; by_topic, {topic, how many of it were moved, …}; lacking, {topic whose list was needed and
--         not given, …}; unheard, {topic of which all drawn processes are gone, and more are there, …}; routed, {routed topic
--         whose list is not empty now, …}; waits, {topic, bin, how many of its tasks with a key waited so long from their due
--         time on, …} where lanes gave something
-- ATOMIC every id moved is in its list and nowhere else; a list that refuses leaves its ids due, as of now
-- COST O(n + log N + routed topics)
local limit = tonumber(ARGV[3])
local lists, waiting, routed = {}, {}, nil
local topics = #ARGV - 7
for i = 8, #ARGV do
  local topic = string.gsub(ARGV[i], '^[!>]', '')
  lists[topic] = KEYS[i + 1]
  if topic == ARGV[i] then
    waiting[topic] = KEYS[i + 1 + topics]
  elseif string.sub(ARGV[i], 1, 1) == '>' then
    routed = routed or {}
    routed[#routed + 1] = topic
  end
end
local lacking, lacks = {}, {}
local function list_of(topic)
  local list = lists[topic]
  if not list and not lacks[topic] then
    lacks[topic] = true
    lacking[#lacking + 1] = topic
  end
  return list
end
local groups, order = {}, {} -- by topic; and the topics, in the order in which they had something
local function group_of(topic)
  local group = groups[topic]
  if not group then
    group = new_group()
    groups[topic], order[#order + 1] = group, topic
  end
  return group
end

local ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, limit)
local full, plain = #ids == limit, #ids
for i = 1, plain do
  local group = group_of(topic_of(ids[i]))
  group[#group + 1] = ids[i]
end
-- leases and windows go by the steady clock
local steady_ms, ahead_ms = steady(now_ms, meta[3], meta[4])
local lapsed = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
local next_lapse = tonumber(lapsed[2] or 'never') or math.huge
local alarms, rung, lanes = KEYS[11 + 2 * topics], {}, {}
if LANES then rung = redis.call('ZRANGEBYSCORE', alarms, '-inf', now_ms, 'LIMIT', 0, limit) end
-- most calls meet no lane, and ask nothing of them
local keyed = LANES and (#rung > 0 or next_lapse <= steady_ms) and lanes_from(9 + 2 * topics, 2)
local given, changed, later, silent, met, waits = 0, {}, {}, {}, {}, {}
if #rung > 0 then
  -- turns_of(lane, ready): how many of a lane with a rate, of which so many are ready, have a turn by now. Their last turn is set anew
  -- where that is too long ago to be made up for.
  local function turns_of(lane, ready)
    local turn, interval = rest_of(lane), rules_of(lane).interval
    if turn > now_ms then return 0 end
    if turn < now_ms - LATE_MS then
      turn = now_ms
      turn_by_lane[lane] = now_ms - (ready + 1) * interval
    end
    return math.min(most_ready(interval) - ready, math.floor((now_ms - turn) / interval) + 1)
  end
  -- gives(lane, rules, share): what a lane can give now joins the group of its topic, up to a share: others are due as well. The alarm that it
  -- needs then. It is asked once.
  local function gives(lane, rules, share)
    local out = out_of(lane)
    local room = math.min(rules.most - out, share, limit - given)
    if room > 0 and rules.interval > 0 then
      note(lanes, lane)
      room = math.min(room, turns_of(lane, ready_of(lane)))
    end
    if room <= 0 then
      if not lanes[lane] then silent[#silent + 1] = lane end
      return
    end
    local group, gave, behind = group_of(rules.topic), 0, nil
    for _, entry in ipairs(next_of(lane, out, math.min(room + 1, rules.most - out))) do
      local at, number = due_of(entry, lane)
      if gave == room or at > now_ms then
        behind = at
        break
      end
      local id = id_of(entry, lane)
      if is_waiting(id) then
        joins(group, id, entry, at, number, out + gave)
        gave = gave + 1
      else
        leaves({entry}) -- another program's
        note(lanes, lane)
      end
    end
    given = given + gave
    if lanes[lane] then return end
    if behind then
      later[#later + 1], later[#later + 2] = behind, lane
    else
      silent[#silent + 1] = lane
    end
  end
  -- on_hold(lane): tells if a lane is on hold. A hold that is over goes; what its lane has is given by the alarm that it has then.
  local function on_hold(lane)
    if not holds[lane] then return false end
    if held_of(lane) <= now_ms then hold(lane) end
    note(lanes, lane)
    return true
  end
  -- A call looks over so many lanes: in some two milliseconds.
  local LOOKED = 100
  -- meet(lane, first): has a lane of a topic whose window has changed give one task. What failed leaves its front, where that is the first
  -- of a lane that does not wait for it any more. A lane that moves to another shard, or came here and is not open, is passed.
  local function meet(lane, first)
    local gate = gate_of(lane)
    if gate == 'closed' or gate == 'shut' then return end
    local low, high = bounds_of(lane)
    local rules = rules_of(lane)
    for _, entry in ipairs(not rules.front and number_of(first, lane) and redis.call('ZRANGEBYLEX', KEYS[LANES], low, high, 'LIMIT', 0, 10) or {}) do
      local id, at = id_of(entry, lane), due_of(entry, lane)
      if number_of(entry, lane) and at > now_ms then
        lets_go(lanes, id, lane, FAR + at)
        takes_in(lanes, id, lane, at)
      end
    end
    met[lane] = true
    if not on_hold(lane) then gives(lane, rules, 1) end
  end
  -- look_over(topic, most): meets the next lanes of a topic whose window has changed, from its cursor on, so many at most. True if more
  -- follow.
  local function look_over(topic, most)
    local cursor, behind, count = 'cursor/' .. topic, '(' .. topic .. '0', 16
    local from = redis.call('HGET', KEYS[1], cursor) or ''
    if from == '' then from = topic .. '/' end
    begin()
    while most > 0 and given < limit do
      local entries, some, firsts = redis.call('ZRANGEBYLEX', KEYS[LANES], '[' .. from, behind, 'LIMIT', 0, count), {}, {}
      if #entries == 0 then
        redis.call('HDEL', KEYS[1], cursor)
        return false
      elseif not list_of(topic) then
        break
      end
      for _, entry in ipairs(entries) do
        local lane = lane_of(entry)
        if not lane then
          leaves({entry}) -- another program's
        elseif not firsts[lane] and #some < most then
          some[#some + 1], firsts[lane] = lane, entry
        end
      end
      look_at(some)
      for _, lane in ipairs(some) do
        if given == limit then break end
        meet(lane, firsts[lane])
        most, from = most - 1, string.sub(lane, 1, -2) .. '0'
      end
      count = math.max(4, math.min(100, #some * 4)) -- of lanes with many tasks that wait one is read
    end
    redis.call('HSET', KEYS[1], cursor, from)
    return true
  end
  local share = math.max(8, math.floor(limit / math.max(1, #rung)))
  look_at(rung)
  local of = {}
  for i, name in ipairs(rung) do
    of[i] = lane_of(name) or false
    if not of[i] then changed[#changed + 1] = topic_of(name) end
  end
  -- those of one instant stand in the order of their names
  local ends = #rung > 3 and #changed == 0 and redis.call('ZMSCORE', alarms, rung[1], rung[#rung])
  count_out(rung, ends and ends[1] == ends[2])
  for _, topic in ipairs(changed) do
    if not look_over(topic, math.max(1, math.floor(LOOKED / #changed))) then
      redis.call('ZREM', alarms, topic .. '/')
    elseif #changed > limit / 2 then
      redis.call('ZADD', alarms, now_ms, topic .. '/') -- other lanes have their turn
    end
  end
  for i, name in ipairs(rung) do
    local lane = of[i]
    if lane and lane ~= name then
      revoked_ends(lanes, name, KEYS[5], KEYS[6])
    elseif lane and not met[lane] and not on_hold(lane) and given < limit then
      local rules = rules_of(lane)
      if list_of(rules.topic) then gives(lane, rules, share) end
    end
  end
end
local moved, oldest, newest, failure = 0, -1, -1, nil
-- wakes are drawn in the order in which topics had something: the order of a table is another on each server
local arrived, in_turn, moved_by_topic = {}, {}, {}
local function arrives(topic, count)
  if not arrived[topic] then in_turn[#in_turn + 1] = topic end
  arrived[topic] = (arrived[topic] or 0) + count
end
if #order > 0 then
  if plain > 0 then
    oldest = math.min(now_ms, now_ms - redis.call('ZSCORE', KEYS[2], ids[1]))
    newest = math.min(now_ms, now_ms - redis.call('ZSCORE', KEYS[2], ids[plain]))
  end
  for _, topic in ipairs(order) do
    local known, group = is_topic(topic), groups[topic]
    local list = known and list_of(topic)
    if not known then
      begin()
      for i, id in ipairs(group) do
        die(id, 'format')
        if i > #group - #group.entries then note(lanes, lane_of(id)) end
      end
      redis.call('ZREM', KEYS[2], unpack(group))
    elseif list and #group > 0 then
      local refused = becomes_ready(lanes, KEYS[2], KEYS[3], list, topic, group, #order == 1 and given == 0)
      if refused then
        failure = refused
      else
        moved = moved + #group
        note_waits(waits, topic, group.since)
        arrives(topic, #group)
        moved_by_topic[#moved_by_topic + 1], moved_by_topic[#moved_by_topic + 2] = topic, #group
      end
    end
  end
  if moved == 0 then oldest, newest = -1, -1 end
end

-- at_a_rate(id): tells if an id is of a lane with a rate.
local function at_a_rate(id)
  local lane = keyed and lane_of(id)
  return lane and select(2, window_of(lane)) > 0
end
local reaped, buried = 0, 0
if next_lapse <= steady_ms and not failure then
  -- 200 a call: each costs a few commands
  local late = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', steady_ms), 'LIMIT', 0, 200)
  local entries = redis.call('HMGET', KEYS[5], unpack(late))
  for i, id in ipairs(late) do
    local failures, lapses, own, _ = lease_of(entries[i])
    lapses = lapses + 1
    local topic = topic_of(id)
    local spent = failures + lapses >= tonumber(own ~= '' and own or ARGV[4])
    if spent or not is_topic(topic) then
      begin()
      die(id, spent and 'lost with its worker' or 'format')
      redis.call('HSET', KEYS[5], id, lease_entry(failures, lapses, own, ''))
      redis.call('ZREM', KEYS[4], id)
      if keyed then frees(lanes, {id}) end
      buried = buried + 1
    elseif at_a_rate(id) then
      -- each comes in its turn: many may lapse at once
      redis.call('ZREM', KEYS[4], id)
      takes_back(lanes, {id}, now_ms)
      frees(lanes, {id})
      redis.call('HSET', KEYS[5], id, lease_entry(failures, lapses, own, ''))
      reaped = reaped + 1
    else
      local list = list_of(topic)
      if list then
        redis.call('ZREM', KEYS[4], id)
        -- on the left: it has waited longest
        local pushed = redis.pcall('LPUSH', list, id)
        if type(pushed) == 'table' then
          redis.call('ZADD', KEYS[4], steady_ms, id)
          failure = pushed
          break
        end
        redis.call('HSET', KEYS[5], id, lease_entry(failures, lapses, own, ''))
        if pushed == 1 then note_began(topic, count_of(redis.call('HGET', KEYS[3], topic))) end
        reaped = reaped + 1
        arrives(topic, 1)
      end
    end
  end
  lapsed = redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
  next_lapse = tonumber(lapsed[2] or 'never') or math.huge
end
local next_alarm = math.huge
if keyed then
  if moved == 0 and #later + (lanes.count or 0) > 0 then begin() end -- also out of memory: an alarm may be the first thing that is written
  if #later > 0 then redis.call('ZADD', alarms, unpack(later)) end
  if #silent > 0 and #silent == #rung and #changed == 0 then
    redis.call('ZREMRANGEBYRANK', alarms, 0, #rung - 1) -- all that rang, and so the first
  elseif #silent > 0 then
    redis.call('ZREM', alarms, unpack(silent))
  end
  rings(lanes)
end
if LANES then
  local first = redis.call('ZRANGE', alarms, 0, 0, 'WITHSCORES')
  next_alarm = math.max(now_ms, tonumber(first[2] or 'never') or math.huge)
end
if failure then return failure end

local window = redis.call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')
local next_trim = tonumber(window[2] or 'never') or math.huge
if next_trim <= steady_ms then
  local past = redis.call('ZRANGEBYSCORE', KEYS[8], '-inf', string.format('%.0f', steady_ms), 'LIMIT', 0, 500)
  redis.call('ZREMRANGEBYRANK', KEYS[8], 0, #past - 1)
  window = redis.call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')
  next_trim = tonumber(window[2] or 'never') or math.huge
end
-- 500 a call, and at once again while there are more: fewer than end would pile up. What ends later is not urgent
-- (push_unique reads the window's end itself): at most once a second
if next_trim <= steady_ms then next_trim = steady_ms elseif next_trim < steady_ms + 1000 then next_trim = steady_ms + 1000 end

local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
local next_due = tonumber(head[2] or 'never') or math.huge
if LANES and next_due >= FAR then next_due = math.huge end
local next_ms = math.max(0, math.min(next_due, math.ceil(next_alarm), next_lapse - ahead_ms, next_trim - ahead_ms))
if full or #lacking > 0 then next_ms = now_ms end
local wake_at = next_ms < math.huge and string.format('%.0f', next_ms) or ''
note_steady(KEYS[1], now_ms, meta[3], meta[4])
if moved + reaped + buried > 0 then
  redis.pcall('HSET', KEYS[1], 'wake_at', wake_at, 'late', newest)
  if reaped > 0 then redis.pcall('HINCRBY', KEYS[1], 'reaped', reaped) end
  if buried > 0 then redis.pcall('HINCRBY', KEYS[1], 'buried', buried) end
elseif wake_at ~= meta[2] then
  redis.pcall('HSET', KEYS[1], 'wake_at', wake_at)
end
local unheard, filled = {}, {}
for _, topic in ipairs(in_turn) do
  if waiting[topic] and draw(topic, waiting[topic], arrived[topic], ARGV[5]) then unheard[#unheard + 1] = topic end
end
if routed then
  local came = false
  for _, topic in ipairs(routed) do
    came = came or arrived[topic]
    -- a list of another type counts as not empty: forward meets the error
    if redis.pcall('LLEN', lists[topic]) ~= 0 then filled[#filled + 1] = topic end
  end
  if redis.call('HGET', KEYS[1], 'poller') ~= ARGV[7] then
    redis.pcall('HSET', KEYS[1], 'poller', ARGV[7])
    if came then redis.pcall('SPUBLISH', ARGV[6], '') end
  end
end
return {
  'ok', 'moved', moved, 'reaped', reaped, 'buried', buried, 'oldest', oldest, 'newest', newest, 'next_ms', wake_at,
  'now_us', string.format('%.0f', now_us), 'by_topic', moved_by_topic, 'lacking', lacking, 'unheard', unheard,
  'routed', filled, waits[1] and 'waits' or nil, waits[1] and waits or nil,
}
