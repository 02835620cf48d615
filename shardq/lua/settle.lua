-- settle: ends leases: ack (done), retry (again later), bury (dead), back (again later, and no attempt counted: not begun, or
-- snoozed). Hands the place that it frees to the next task of its lane.
-- USES: epoch, guard, count, begin, rouse, lease, topic, die, reason, draw, lane, kept, changes, give, wait, ends
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 leased ZSET
-- KEYS 4 lease HASH
-- KEYS 5 due ZSET
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 topics HASH
-- KEYS 9.. ready LIST, of each topic of which the next task of a lane may be handed over, at most 8
-- KEYS 9+topics.. waiting ZSET, likewise
-- KEYS 9+2*topics keys ZSET, where the engine has keys
-- KEYS 10+2*topics placed ZSET, where the engine has keys
-- KEYS 11+2*topics alarms ZSET, where the engine has keys
-- KEYS 12+2*topics rests ZSET, where the engine has keys
-- KEYS 13+2*topics holds HASH, where the engine has keys
-- KEYS 14+2*topics gates HASH, where the engine has keys
-- KEYS 15+2*topics.. ends HASH, each slot of the ring, where ends are kept
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 a: how many acks follow, at most 1,000; with slots a:AGE:MOST, the rule by which ends are kept (keep_ends)
-- ARGV 5 t: under how many tokens they are
-- ARGV 6.. a times: id; then t times: token, how many of these ids, the next ones, are under it; then, with slots, a times: TOOK:PUSHED:FAILURE
--         of its end, or '' for none; then for each other:
--         retry | bury (with a delay: the lane of its key gives nothing for so long) | back | hold (of an id with a key: likewise), id, token, delay in ms, reason, attempts allowed to a task that brings no limit of its own;
--         then, with lists, prefix of the wake channels of this shard, and the topic of each list: none that is paused, or has a route
-- RETURNS {'ok', position, answer, …} only for positions (from 1, acks first) that were not simply done: lost, replaced, dead
--         (a retry that had no attempt left); where lanes handed something over, then {topic, bin, how many of its tasks waited so
--         long from their due time on, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC every item whose token is the present one; the others change nothing
-- COST O(n log M), of tasks with a key O(n log N), and the records of what is retried: the reason goes into them. Once that is about 1 MiB, what follows keeps
--         the reason before
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[5])
redis.call('ZCARD', KEYS[6])
redis.call('HLEN', KEYS[7])
local answers = {'ok'}
local acks, age_ms, most = tonumber(ARGV[4])
if not acks then
  acks, age_ms, most = string.match(ARGV[4], '^(%d+):(%d+):(%d+)$')
  acks = tonumber(acks)
end
local topics = (#KEYS - (LANES and 14 or 8) - (age_ms and 8 or 0)) / 2
local keyed, lanes, told = LANES and lanes_from(9 + 2 * topics, 5), {}, {}
local function verdict(position, entry, token, id)
  local failures, lapses, limit, present = lease_of(entry)
  if token ~= '' and present == token then return true, failures, lapses, limit end
  answers[#answers + 1] = position
  local replaced = token ~= '' and present == '~' .. token
  answers[#answers + 1] = replaced and 'replaced' or 'lost'
  if replaced and keyed then told[#told + 1] = lane_of(id) and id end
  return false
end
local tokens = tonumber(ARGV[5])
local words = acks + tokens * 2
if acks > 0 then
  local ids, good, at, ends, front = { unpack(ARGV, 6, 5 + acks) }, 0, 0, {}, nil
  local entries = redis.call('HMGET', KEYS[4], unpack(ids))
  for i = 6 + acks, 4 + acks + tokens * 2, 2 do
    local token, known = ARGV[i], nil
    for position = at + 1, at + tonumber(ARGV[i + 1]) do
      local entry = entries[position]
      -- most entries of one claim are alike
      local alike, failures, lapses = entry and entry == known, 0, 0
      if not alike then alike, failures, lapses = verdict(position, entry, token, ids[position]) end
      if alike then
        if age_ms then
          if entry ~= known then front = string.format('%.0f:d:%d:%d:', now_ms, failures, lapses) .. (string.match(token, '^(.*):') or token) .. ':' end
          local told = ARGV[5 + words + position]
          if told ~= '' then ends[#ends + 1], ends[#ends + 2] = ids[position], front .. told end
        end
        good, known = good + 1, entry
        ids[good] = ids[position]
      end
    end
    at = at + tonumber(ARGV[i + 1])
  end
  if good > 0 then
    -- the record first: what is left of the task, should a later command be refused, is dropped at its next claim
    redis.call('HDEL', KEYS[2], unpack(ids, 1, good))
    redis.call('HDEL', KEYS[4], unpack(ids, 1, good))
    redis.call('ZREM', KEYS[3], unpack(ids, 1, good))
    if keyed then frees(lanes, {unpack(ids, 1, good)}) end
    if #ends > 0 then keep_ends(tonumber(age_ms), tonumber(most), ends) end
  end
end
if age_ms then words = words + acks end
local position, first, rewritten = acks, math.huge, 0
local last = #ARGV - (topics > 0 and topics + 1 or 0)
for i = 6 + words, last, 6 do
  local verb, id, token, delay_ms, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
  position = position + 1
  local good, failures, lapses, limit = verdict(position, redis.call('HGET', KEYS[4], id), token, id)
  if good then
    if verb ~= 'back' and verb ~= 'hold' then failures = failures + 1 end
    local spent = verb == 'retry' and failures + lapses >= tonumber(limit ~= '' and limit or ARGV[i + 5])
    begin()
    if verb == 'bury' or spent then
      die(id, reason)
      if verb ~= 'bury' then
        answers[#answers + 1] = position
        answers[#answers + 1] = 'dead'
      elseif delay_ms > 0 and keyed and lane_of(id) then
        local lane, at = lane_of(id), math.ceil(now_us / 1000) + delay_ms
        if at > held_of(lane) then hold(lane, at) end
      end
    else
      local at = math.ceil(now_us / 1000) + delay_ms
      local lane = keyed and lane_of(id)
      if lane then
        local _, _, front = window_of(lane)
        local ahead = verb == 'hold' or verb == 'back' and delay_ms == 0 or verb == 'retry' and front
        if ahead then
          takes_back(lanes, {id}, verb == 'hold' and at - delay_ms or at)
        else
          takes_in(lanes, id, lane, at)
        end
        -- a hold that lasts longer stays
        if verb == 'hold' and at > held_of(lane) then hold(lane, at) end
      else
        redis.call('ZADD', KEYS[5], at, id)
        if at < first then first = at end
      end
      -- not begun: its next dispatch is the one that counts
      if verb == 'back' and delay_ms == 0 then redis.pcall('HINCRBY', KEYS[8], topic_of(id), -1) end
      -- the reason is for people: where it is refused it is left out
      local record = verb == 'retry' and rewritten < 1048576 and redis.pcall('HGET', KEYS[2], id)
      local noted = type(record) == 'string' and with_reason(record, reason)
      if noted then
        rewritten = rewritten + #noted
        redis.pcall('HSET', KEYS[2], id, noted)
      end
    end
    redis.call('HSET', KEYS[4], id, lease_entry(failures, lapses, limit, ''))
    redis.call('ZREM', KEYS[3], id)
    if keyed then frees(lanes, {id}) end
  end
end
if keyed then
  for _, id in ipairs(told) do revoked_ends(lanes, id, KEYS[4], KEYS[6]) end
  if topics > 0 then
    -- keeps(lane): tells if a hold, or a change of the number of shards, keeps a lane from giving.
    local function keeps(lane)
      local gate = gate_of(lane)
      return hold_of(lane) > 0 or gate == 'closed' or gate == 'shut'
    end
    -- hands_over(lists, waiting): of the lanes of these topics in which nothing but places became free, the next tasks that are due become
    -- ready: of those that give one at a time, without a rate, on no hold, and here. As by dispatch: a list that refuses gets none.
    local function hands_over(lists, waiting)
      local some, of, open, share = {}, {}, {}, math.floor(wakings / topics)
      for _, lane in ipairs(lanes) do
        local rules = rules_of(lane)
        local topic = rules.topic
        if lists[topic] and lanes[lane] == FREED and rules.most == 1 and rules.interval == 0 then
          if open[topic] == nil then open[topic] = can_draw(waiting[topic], topics) end
          if open[topic] then some[#some + 1], of[#of + 1] = lane, rules end
        end
      end
      look_at(some, true)
      if not none_stayed then count_out(some) end
      local groups, order, waits = {}, {}, {}
      for i, lane in ipairs(some) do
        local rules = of[i]
        -- where no limit was lowered, no more than one was out, and that one is not any more
        local is_empty = none_stayed and not rules.lowered or out_of(lane) == 0
        if is_empty and not (is_kept(lane) and keeps(lane)) then
          local entry = first_of(lane)
          local at, number, id
          if entry then at, number = due_of(entry, lane) end
          lanes[lane] = at or false
          if at and at <= now_ms then id = id_of(entry, lane) end
          if id and is_waiting(id) then
            local group = groups[rules.topic]
            if not group then
              group = new_group()
              groups[rules.topic], order[#order + 1] = group, rules.topic
            end
            joins(group, id, entry, at, number, 0)
            lanes[lane] = false
          end
        end
      end
      for _, topic in ipairs(order) do
        local group = groups[topic]
        local refused = becomes_ready(lanes, KEYS[5], KEYS[8], lists[topic], topic, group)
        if not refused then
          note_waits(waits, topic, group.since)
          draw(topic, waiting[topic], math.min(#group, share), ARGV[last + 1])
        end
      end
      if #waits > 0 then answers[#answers + 1] = waits end
    end
    local lists, waiting = {}, {}
    for i = 1, topics do lists[ARGV[last + 1 + i]], waiting[ARGV[last + 1 + i]] = KEYS[8 + i], KEYS[8 + topics + i] end
    hands_over(lists, waiting)
  end
  first = math.min(first, rings(lanes))
end
if first < math.huge then rouse(first) end
return answers
