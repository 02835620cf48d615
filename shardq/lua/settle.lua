-- settle: ends leases: ack (done), retry (again later), bury (dead), back (again later, and no attempt counted: not begun, or
-- snoozed).
-- USES: epoch, guard, begin, rouse, lease, topic, die, reason, lane
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 leased ZSET
-- KEYS 4 lease HASH
-- KEYS 5 due ZSET
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 topics HASH
-- KEYS 9 keys ZSET, where the engine has keys
-- KEYS 10 placed ZSET, where the engine has keys
-- KEYS 11 alarms ZSET, where the engine has keys
-- KEYS 12 rests ZSET, where the engine has keys
-- KEYS 13 holds HASH, where the engine has keys
-- KEYS 14 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 a: how many acks follow, at most 1,000
-- ARGV 5 t: under how many tokens they are
-- ARGV 6.. a times: id; then t times: token, how many of these ids, the next ones, are under it; then for each other:
--         retry | bury | back | hold (of an id with a key: its lane gives nothing for the delay), id, token, delay in ms, reason, attempts allowed to a task that brings no limit of its own
-- RETURNS {'ok', position, answer, …} only for positions (from 1, acks first) that were not simply done: lost, replaced, dead
--         (a retry that had no attempt left) | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC every item whose token is the present one; the others change nothing
-- COST O(n log M), and the records of what is retried: the reason goes into them. Once that is about 1 MiB, what follows keeps
--         the reason before
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[5])
redis.call('ZCARD', KEYS[6])
redis.call('HLEN', KEYS[7])
local answers = {'ok'}
local keyed, lanes, told = LANES and lanes_from(9, 5), {}, {}
local function verdict(position, entry, token, id)
  local failures, lapses, limit, present = lease_of(entry)
  if token ~= '' and present == token then return true, failures, lapses, limit end
  answers[#answers + 1] = position
  local replaced = token ~= '' and present == '~' .. token
  answers[#answers + 1] = replaced and 'replaced' or 'lost'
  if replaced and keyed then told[#told + 1] = lane_of(id) and id end
  return false
end
local acks, tokens = tonumber(ARGV[4]), tonumber(ARGV[5])
if acks > 0 then
  local ids, good, at = { unpack(ARGV, 6, 5 + acks) }, 0, 0
  local entries = redis.call('HMGET', KEYS[4], unpack(ids))
  for i = 6 + acks, 4 + acks + tokens * 2, 2 do
    local token, known = ARGV[i], nil
    for position = at + 1, at + tonumber(ARGV[i + 1]) do
      local entry = entries[position]
      -- most entries of one claim are alike
      if (entry and entry == known) or verdict(position, entry, token, ids[position]) then
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
  end
end
local position, first, rewritten = acks, math.huge, 0
for i = 6 + acks + tokens * 2, #ARGV, 6 do
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
  first = math.min(first, rings(lanes))
end
if first < math.huge then rouse(first) end
return answers
