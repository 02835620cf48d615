-- claim: gives ready tasks to one consumer under a lease, the topics in the order given.
-- USES: epoch, guard, count, steady, begin, rouse, lease, record, draw, roomy, topic, ghost, ghosts, die, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 leased ZSET
-- KEYS 4 lease HASH
-- KEYS 5 ghost HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8.. ready LIST, in order of priority
-- KEYS 8+topics.. waiting ZSET, likewise
-- KEYS 8+2*topics keys ZSET, where the engine has keys
-- KEYS 9+2*topics placed ZSET, where the engine has keys
-- KEYS 10+2*topics alarms ZSET, where the engine has keys
-- KEYS 11+2*topics rests ZSET, where the engine has keys
-- KEYS 12+2*topics holds HASH, where the engine has keys
-- KEYS 13+2*topics gates HASH, where the engine has keys
-- KEYS 14+2*topics due ZSET, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 how many at most in all, up to 1,000; 0 only looks
-- ARGV 5 length of the lease in ms
-- ARGV 6 token of the lease, never used before
-- ARGV 7 prefix of the wake channels of this shard; a process's name follows
-- ARGV 8 the caller's process, to be woken for each list left empty, or '' when it does not wait
-- ARGV 9.. for each list: its topic, how many of it at most, attempts allowed to a task that brings no limit of its own
--         ('': the dispatcher says), the number of the first permit, or '' for a topic that needs none. A task with a
--         permit is leased under the token, '#' and the number of its permit, the next one under the next number
-- RETURNS {'ok', name, value, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}: left, {what is left in each list, …};
--         crowds, {processes waiting for each list, …}; dropped, entries; ids, with a line feed between them; records,
--         {record, …}; pasts, {position, failures, lapses, …} only for tasks (from 1) that have either; where the engine has
--         keys, leased_us, the instant of the leases
-- ATOMIC a task is in the answer and leased, or still in its list
-- COST O(n log M), n the entries looked at: at most 1,000, and about 1 MiB of records; where the limit of keys was lowered, also
--         what is out of the keys that are met, about 20,000 at most. Ghosts and expired tasks are
--         dropped and do not count as given: the entries behind them are looked at. If some were dropped and none
--         given, call again at once
local max, token = tonumber(ARGV[4]), ARGV[6]
local lease_ms, steady_ms = tonumber(ARGV[5]), steady(now_ms, meta[3], meta[4])
local haunted, held, known_leases
local ids_given, records_given, entries, pasts = {}, {}, {}, {}
local met, odd, reasons = {}, {}, {}
local taken_of, drained, given_of = {}, {}, {}
local given, looked, bytes = 0, 0, 0
local lists = (#ARGV - 8) / 4
local keyed, lanes, sent_back = LANES and lanes_from(8 + 2 * lists, 14 + 2 * lists), {}, {}
local lowered, rated, busy, gave, studied = {}, {}, {}, {}, 0
-- is_lowered(list, topic, ids, first, last): tells if a list may have tasks that are over the lowered limit of their keys: `meta` is
-- asked once one of the list is met that has a key.
local function is_lowered(list, topic, ids, first, last)
  for i = first, last do
    if lowered[list] ~= nil then break end
    local lane = string.find(ids[i], '/', #topic + 2, true) and lane_of(ids[i])
    if lane then lowered[list], rated[list] = select(4, window_of(lane)) and lane or false, is_rated(lane) end
  end
  return lowered[list]
end
-- is_over(lane): tells if as many of a lane are in handlers as its lowered limit allows, with those that this call gives, or if it is not
-- the turn of another one yet.
local function is_over(lane)
  local most, interval = window_of(lane)
  if not busy[lane] then
    local low, high = bounds_of(lane)
    local placed, count = redis.call('ZRANGEBYLEX', KEYS[LANES + 1], low, high, 'LIMIT', 0, 1000), 0
    if #placed > 0 then
      local held_now, revoked = redis.call('ZMSCORE', KEYS[3], unpack(placed)), redis.call('ZMSCORE', KEYS[LANES + 2], unpack(placed))
      for i = 1, #placed do
        if held_now[i] or revoked[i] then count = count + 1 end
      end
    end
    busy[lane], studied = count, studied + #placed
  end
  gave[lane] = gave[lane] or 0
  if busy[lane] >= most or interval == 0 then return busy[lane] >= most end
  local turn = turn_of(lane)
  if turn + interval < now_ms - LATE_MS then turn = now_ms - interval end
  return turn + (gave[lane] + 1) * interval > now_ms
end
-- looked_over(lane): looks at lanes of its topic for more that is over its limit: a hundred, from where the last claim ended.
local function looked_over(lane)
  local topic, most, _, _, from = topic_of(lane), window_of(lane)
  local field, first, high = 'lowered/' .. topic, '[' .. topic .. '/' .. string.sub(from, #topic + 2), '(' .. topic .. '0'
  for _ = 1, 100 do
    local id = redis.call('ZRANGEBYLEX', KEYS[LANES + 1], first, high, 'LIMIT', 0, 1)[1]
    if not id then
      local has_rate = select(2, window_of(lane)) > 0
      if has_rate or redis.call('ZLEXCOUNT', KEYS[LANES + 1], '[!' .. topic .. '/', '(!' .. topic .. '0') == 0 then
        redis.call('HDEL', KEYS[1], field)
      end
      return
    end
    local next_lane = lane_of(id)
    if next_lane and out_of(next_lane) > most then break end
    first = next_lane and '[' .. string.sub(next_lane, 1, -2) .. '0' or '(' .. id
  end
  local at = string.sub(first, 2)
  if at ~= from then redis.pcall('HSET', KEYS[1], field, at) end
end
for list = 8, 7 + lists do
  local wanted, allowed = math.min(max - given, tonumber(ARGV[list * 4 - 22])), ARGV[list * 4 - 21]
  local permit, own = tonumber(ARGV[list * 4 - 20]), token
  local first_lease = lease_entry(0, 0, allowed, token)
  local topic = ARGV[list * 4 - 23]
  local ids, stale, at, taken, ended = {}, {}, 0, 0, false
  while wanted > 0 and looked < 1000 and studied < 20000 and bytes < 1048576 do
    if at == #ids then
      if ended then break end
      -- first as many as are wanted; then on behind those, in growing steps, in place of what was dropped
      local count = math.min(1000 - looked, math.max(wanted, 2 * taken))
      ids, at = redis.call('LRANGE', KEYS[list], taken, taken + count - 1), 0
      ended = #ids < count
      if #ids == 0 then break end
      if haunted == nil then
        haunted = redis.call('HLEN', KEYS[5]) > 0
        held, known_leases = redis.call('ZCARD', KEYS[3]), redis.call('HLEN', KEYS[4])
      end
      stale = haunted and marked(ids, redis.call('HMGET', KEYS[5], unpack(ids))) or {}
    end
    local before, last = at, math.min(#ids, at + next_chunk(1048576 - bytes, looked, bytes))
    local records = redis.call('HMGET', KEYS[2], unpack(ids, at + 1, last))
    local lane_at, known_lanes = {}, {}
    local narrowed = keyed and is_lowered(list, topic, ids, at + 1, last)
    if keyed and (holds.count > 0 or narrowed) then
      for i = at + 1, last do
        lane_at[i] = lane_of(ids[i])
        known_lanes[#known_lanes + 1] = lane_at[i]
      end
      look_at(known_lanes, not rated[list])
    end
    -- each leased task has an entry: if there are no more than these, no ready task has one
    local leases = known_leases > held and redis.call('HMGET', KEYS[4], unpack(ids, at + 1, last)) or {}
    while at < last and wanted > 0 and bytes < 1048576 do
      at = at + 1
      local id, record, lease, lane = ids[at], records[at - before], leases[at - before], lane_at[at]
      if lane and not narrowed and not holds[lane] then lane = nil end -- nothing keeps it
      if record then bytes = bytes + #record end
      if stale[at] then
        passed[id] = (passed[id] or 0) + 1
      elseif record and not met[id] then
        met[id] = true
        local known, head = parts_of(record)
        if known and head and head.x and head.x <= now_ms then
          odd[#odd + 1], reasons[#reasons + 1] = id, 'expired'
        elseif lane and known and topic_of(id) == topic and (held_of(lane) > now_ms or narrowed and is_over(lane)) then
          sent_back[#sent_back + 1] = id
        elseif known and topic_of(id) == topic and not string.find(id, '\n', 1, true) then -- ids go between line feeds
          if narrowed and lane then busy[lane], gave[lane] = busy[lane] + 1, gave[lane] + 1 end
          local entry = first_lease
          given, wanted = given + 1, wanted - 1
          if permit then own, permit = token .. '#' .. permit, permit + 1 end
          if permit or lease or (head and head.m) then
            local failures, lapses = lease_of(lease)
            entry = lease_entry(failures, lapses, head and head.m or allowed, own)
            if failures + lapses > 0 then
              local place = #pasts
              pasts[place + 1], pasts[place + 2], pasts[place + 3] = given, failures, lapses
            end
          end
          ids_given[given], records_given[given], entries[given] = id, record, entry
        else
          odd[#odd + 1], reasons[#reasons + 1] = id, 'format'
        end
      end
    end
    looked, taken = looked + at - before, taken + at - before
  end
  taken_of[list], drained[list], given_of[list] = taken, ended and at == #ids, given
end
-- what is dropped is noted in dead and ghost before it leaves its list: if that is refused, the next call meets it again
if #odd > 0 or #sent_back > 0 or next(passed) then
  -- a key of the wrong type fails here, before anything is written
  redis.call('ZCARD', KEYS[6])
  redis.call('HLEN', KEYS[7])
  begin()
  for list = 8, 7 + lists do redis.call('LTRIM', KEYS[list], 0, -1) end -- changes nothing; a user who may not do it fails here
end
for i, id in ipairs(odd) do
  die(id, reasons[i])
end
if keyed then
  -- spoil(lane): drops what has expired at the head of a lane: a backlog is not worth a dispatch for each of it.
  local function spoil(lane)
    local low, high = bounds_of(lane)
    local entries, at = redis.call('ZRANGEBYLEX', KEYS[LANES], low, high, 'LIMIT', 0, 200), 0
    while at < #entries and bytes < 1048576 do
      local ids = {}
      for i = at + 1, math.min(at + 20, #entries) do ids[#ids + 1] = id_of(entries[i], lane) end
      local records, due = redis.call('HMGET', KEYS[2], unpack(ids)), redis.call('ZMSCORE', KEYS[DUE], unpack(ids))
      for i, id in ipairs(ids) do
        local known, head = parts_of(records[i] or '')
        bytes = bytes + #(records[i] or '')
        if not (due[i] and due_of(entries[at + i], lane) <= now_ms and known and head and head.x and head.x <= now_ms) then return end
        die(id, 'expired')
        redis.call('ZREM', KEYS[DUE], id)
        lets_go(lanes, id, lane, due[i])
      end
      at = at + #ids
    end
  end
  for i, id in ipairs(odd) do
    local lane = reasons[i] == 'expired' and lane_of(id)
    if lane and not lanes[lane] then
      note(lanes, lane)
      spoil(lane)
    end
  end
  takes_back(lanes, sent_back, now_ms)
  frees(lanes, odd)
  frees(lanes, sent_back)
end
for topic, number in pairs(forget_passed(KEYS[5])) do haunt(topic, -number) end
for list = 8, 7 + lists do
  if taken_of[list] > 0 then redis.call('LTRIM', KEYS[list], taken_of[list], -1) end
end
if given > 0 then
  -- after the removal, so that a server without memory still hands out; refused all the same: put everything back
  local words, deadline = {}, string.format('%.0f', steady_ms + lease_ms)
  for i = 1, given do words[i * 2 - 1], words[i * 2] = deadline, ids_given[i] end
  local widen, widen_leases = roomy(held, 128, given), roomy(known_leases, 512, given)
  if widen then redis.pcall('ZADD', KEYS[3], deadline, FILLER) end
  local failure = redis.pcall('ZADD', KEYS[3], unpack(words))
  if widen then redis.pcall('ZREM', KEYS[3], FILLER) end
  if type(failure) ~= 'table' then
    -- the ids stay where they are, each with its entry behind it
    for i = 1, given do words[i * 2 + 1] = entries[i] end
    if widen_leases then redis.pcall('HSET', KEYS[4], '', FILLER) end
    failure = redis.pcall('HSET', KEYS[4], unpack(words, 2, given * 2 + 1))
    if widen_leases then redis.pcall('HDEL', KEYS[4], '') end
    if type(failure) == 'table' then
      for i = 1, given do redis.call('ZREM', KEYS[3], ids_given[i]) end
    end
  end
  if type(failure) == 'table' then
    for list = 8, 7 + lists do
      local first, last = (given_of[list - 1] or 0) + 1, given_of[list]
      for i = last, first, -1 do redis.call('LPUSH', KEYS[list], ids_given[i]) end
    end
    return failure
  end
end
for list = 8, 7 + lists do
  if rated[list] then takes_turns(lanes, {unpack(ids_given, (given_of[list - 1] or 0) + 1, given_of[list])}) end
  if lowered[list] then looked_over(lowered[list]) end
end
local lengths, crowds = {}, {}
for i = 1, lists do
  local waiting = KEYS[7 + lists + i]
  lengths[i] = drained[7 + i] and 0 or redis.call('LLEN', KEYS[7 + i])
  if lengths[i] > 0 then
    -- more than this caller takes: the next one is woken, and will wake the next
    if taken_of[7 + i] > 0 then draw(ARGV[5 + i * 4], waiting, 1, ARGV[7]) end
  elseif ARGV[8] ~= '' then
    -- a process that did not come back for an hour is gone: who waits looks again at least every half hour
    if redis.pcall('ZADD', waiting, 'NX', steady_ms, ARGV[8]) == 1 then
      redis.pcall('ZREMRANGEBYSCORE', waiting, '-inf', steady_ms - 3600000)
    end
  end
  local crowd = ARGV[8] ~= '' and redis.pcall('ZCARD', waiting)
  crowds[i] = type(crowd) == 'number' and crowd or 0
end
local first = keyed and rings(lanes) or math.huge
if given > 0 and lease_ms <= STEP_MS then first = math.min(first, now_ms + lease_ms) end
if first < math.huge then rouse(first) end
return {
  'ok', 'left', lengths, 'crowds', crowds, 'dropped', looked - given, 'ids', table.concat(ids_given, '\n'),
  'records', records_given, 'pasts', pasts, keyed and 'leased_us' or nil, keyed and steady_ms * 1000 + now_us % 1000 or nil,
}
