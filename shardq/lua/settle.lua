-- settle: ends leases: ack (done), retry (again later), bury (dead), back (again later, and no attempt counted: not begun, or
-- snoozed).
-- USES: epoch, guard, begin, rouse, lease, topic, die, reason
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 leased ZSET
-- KEYS 4 lease HASH
-- KEYS 5 due ZSET
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 topics HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 a: how many acks follow, at most 1,000
-- ARGV 5 t: under how many tokens they are
-- ARGV 6.. a times: id; then t times: token, how many of these ids, the next ones, are under it; then for each other:
--         retry | bury | back, id, token, delay in ms, reason, attempts allowed to a task that brings no limit of its own
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
local function verdict(position, entry, token)
  local failures, lapses, limit, present = lease_of(entry)
  if token ~= '' and present == token then return true, failures, lapses, limit end
  answers[#answers + 1] = position
  answers[#answers + 1] = (token ~= '' and present == '~' .. token) and 'replaced' or 'lost'
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
      if (entry and entry == known) or verdict(position, entry, token) then
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
  end
end
local position, first, rewritten = acks, math.huge, 0
for i = 6 + acks + tokens * 2, #ARGV, 6 do
  local verb, id, token, delay_ms, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
  position = position + 1
  local good, failures, lapses, limit = verdict(position, redis.call('HGET', KEYS[4], id), token)
  if good then
    if verb ~= 'back' then failures = failures + 1 end
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
      redis.call('ZADD', KEYS[5], at, id)
      -- not begun: its next dispatch is the one that counts
      if verb == 'back' and delay_ms == 0 then redis.pcall('HINCRBY', KEYS[8], topic_of(id), -1) end
      if at < first then first = at end
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
  end
end
if first < math.huge then rouse(first) end
return answers
