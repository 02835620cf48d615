-- push_unique: stores tasks whose ids the caller chose, or whose first answer was lost.
-- USES: epoch, guard, count, steady, instant, rouse, record, dated, nonce, lease, state, topic, ghost, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 ghost HASH
-- KEYS 9 seen ZSET
-- KEYS 10 moved HASH
-- KEYS 11 topics HASH
-- KEYS 12 keys ZSET, where the engine has keys
-- KEYS 13 placed ZSET, where the engine has keys
-- KEYS 14 alarms ZSET, where the engine has keys
-- KEYS 15 rests ZSET, where the engine has keys
-- KEYS 16 holds HASH, where the engine has keys
-- KEYS 17 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 '1' when an earlier answer was lost: what was stored under the nonce of a record counts as pushed, else '0'
-- ARGV 5 '1' for a shard that an id may be in from an earlier number of shards only: an id that is not here is not pushed;
--         '2' likewise, and a parcel of it that is still here was put at its target: the id is not moving; else '0'
-- ARGV 6.. for each task, at most 1,000 or 1 MiB: id, due (as in push), record, keep | reject | replace, dedup window in
--         ms or 0, to which -MS may be added: for so long after the last send resends know of this push, and nobody else;
--         and to that -AT, an instant in ms after which it is refused, unless it is known
-- RETURNS {'ok', answer, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}; an answer is pushed, replaced, seen, refused:seen,
--         kept:STATE or refused:STATE with STATE scheduled, ready, leased or dead; refused:late; moving: the id is on its way to another
--         shard; elsewhere: it is not here, push it to the shard where it belongs
-- ATOMIC all tasks in one step, each by the conflict table
-- COST O(n log N)
local answers, first, listed = {'ok'}, math.huge, {}
local keyed, lanes = LANES and lanes_from(12, 3), {}
local steady_ms, ahead_ms = steady(now_ms, meta[3], meta[4])
-- a key of the wrong type fails here, before anything is written
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('HLEN', KEYS[5])
redis.call('ZCARD', KEYS[6])
redis.call('HLEN', KEYS[7])
redis.call('HLEN', KEYS[8])
redis.call('ZCARD', KEYS[9])
redis.call('HLEN', KEYS[10])
-- What a first send of this call may have left: its nonces, and their marks. One id twice: the later one is what is left.
local resent, sent = ARGV[4] == '1', {}
if resent then
  for i = 6, #ARGV, 5 do
    local nonce = nonce_of(ARGV[i + 2])
    if nonce then
      sent[ARGV[i] .. '\n' .. nonce] = i
      sent[ARGV[i] .. '\n' .. mark_of(nonce)] = i
    end
  end
end
local function ours(id, trace, i) return trace and (sent[id .. '\n' .. trace] or 0) >= i end
for i = 6, #ARGV, 5 do
  local id, spec, record, mode, dedup = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local at = instant(spec)
  local own, own_ms, last_ms -- for resends only: a member of seen that no other push asks for
  if not dedup then
    dedup, own_ms, last_ms = string.match(ARGV[i + 4], '^(%d+)%-(%d+)%-?(%d*)$')
    -- what is no window fails here, before this task is written
    dedup, own_ms, own = dedup + 0, own_ms + 0, id .. '\n' .. (nonce_of(record) or '')
    last_ms = tonumber(last_ms)
  end
  local present = redis.call('HGET', KEYS[2], id)
  local state, score = 'gone', nil
  if present then state, score = state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[6]) end
  local lane = keyed and lane_of(id)
  local window = not present and (resent or mode ~= 'replace') and tonumber(redis.call('ZSCORE', KEYS[9], id) or 0)
  local open, answer = window and window > steady_ms
  local known = own and resent and tonumber(redis.call('ZSCORE', KEYS[9], own) or 0) > steady_ms
  if known then
    answer = 'pushed' -- or kept, whatever became of it since
  elseif not present and ARGV[5] ~= '2' and redis.call('HEXISTS', KEYS[10], id) == 1 then
    answer = 'moving'
  elseif resent and present and ours(id, nonce_of(present), i) then
    answer = 'pushed'
  elseif present and mode ~= 'replace' then
    answer = (mode == 'keep' and 'kept:' or 'refused:') .. state
  elseif resent and open and not last_ms and ours(id, math.ceil(window) - window, i) then
    answer = 'pushed' -- and dispatched, and acknowledged. Not with AT: own knows each send of such a push, and marks few
  elseif open and mode ~= 'replace' then
    answer = mode == 'keep' and 'seen' or 'refused:seen'
  elseif not present and ARGV[5] ~= '0' then
    answer = 'elsewhere'
  elseif now_ms > (last_ms or math.huge) then
    answer = 'refused:late'
  else
    answer = present and 'replaced' or 'pushed'
    -- due first: refused (no memory, no permission), it has changed nothing; later ones leave the id in one place at least
    if lane then
      if state == 'scheduled' then lets_go(lanes, id, lane, score) end
      takes_in(lanes, id, lane, at)
      if string.byte(spec, -1) == 32 then shut_lane(lane) end
    else
      redis.call('ZADD', KEYS[3], at, id)
    end
    if state == 'ready' then
      local counted = redis.pcall('HSET', KEYS[8], id, ghosts_with(KEYS[8], id))
      if type(counted) == 'table' then
        redis.call('ZREM', KEYS[3], id)
        if lane then lets_go(lanes, id, lane, FAR + at) end
        return counted
      end
      haunt(topic_of(id), 1)
      if lane then frees(lanes, {id}) end
    end
    redis.call('HSET', KEYS[2], id, dated(record))
    local topic = topic_of(id)
    if not listed[topic] then
      listed[topic] = true
      redis.pcall('HSETNX', KEYS[11], topic, 0) -- a topic is listed from its first task on, and is not idle
      redis.pcall('HDEL', KEYS[1], 'idle/' .. topic)
    end
    local _, _, _, token = lease_of(present and redis.call('HGET', KEYS[5], id))
    if state == 'leased' then
      redis.call('HSET', KEYS[5], id, lease_entry(0, 0, '', '~' .. token))
      redis.call('ZREM', KEYS[4], id)
      -- its handler runs on: the place is taken until its lease would have ended, or it is told
      if lane then redis.call('ZADD', KEYS[LANES + 2], string.format('%.0f', score - ahead_ms), id) end
    elseif present and string.sub(token, 1, 1) ~= '~' then
      -- the failures of the task before; an entry with '~' has none, and still has to tell its holder 'replaced'
      redis.call('HDEL', KEYS[5], id)
    end
    if state == 'dead' then
      redis.call('ZREM', KEYS[6], id)
      redis.call('HDEL', KEYS[7], id)
    end
    if dedup > 0 then redis.call('ZADD', KEYS[9], steady_ms + dedup - mark_of(nonce_of(record)), id) end
    if not lane and at < first then first = at end
  end
  if known then
    redis.pcall('ZADD', KEYS[9], steady_ms + own_ms, own) -- a server without memory keeps it as long as it did
  elseif own and answer ~= 'moving' and answer ~= 'elsewhere' and string.sub(answer, 1, 8) ~= 'refused:' then
    redis.call('ZADD', KEYS[9], steady_ms + own_ms, own)
  end
  answers[#answers + 1] = answer
end
if keyed then first = math.min(first, rings(lanes)) end
if first < math.huge then rouse(first) end
return answers
