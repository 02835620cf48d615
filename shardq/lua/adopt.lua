-- adopt: stores tasks as they were in another engine, or under ids that were made for them before, each once. An id that is here in
-- any state stays as it is.
-- USES: epoch, guard, count, steady, instant, rouse, record, dated, state, topic, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 seen ZSET
-- KEYS 9 moved HASH
-- KEYS 10 topics HASH
-- KEYS 11 keys ZSET, where the engine has keys
-- KEYS 12 placed ZSET, where the engine has keys
-- KEYS 13 alarms ZSET, where the engine has keys
-- KEYS 14 rests ZSET, where the engine has keys
-- KEYS 15 holds HASH, where the engine has keys
-- KEYS 16 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 NONCE-MS: the nonce of the import, and for how long after the last send resends under it know what was done
-- ARGV 5 '1' for a shard that the ids may be in from an earlier number of shards only: an id that is not here is not stored;
--         '2' likewise, and what was moving out of it was put at its target; else '0'
-- ARGV 6.. for each task, at most 1,000 or 1 MiB: id, due (as in push; of a dead one its time of death), record, due | first (it was
--         ready or leased: with a key it goes to the front of its lane) | retry (with a key likewise, where lanes wait for retries) |
--         dead, lease entry or '', reason of its death or ''
-- RETURNS {'ok', answer, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}; an answer is adopted; known: a send of this import has dealt
--         with it, whatever became of it since; kept:STATE; seen: its dedup window is open; moving; elsewhere: it is not here, adopt it
--         where it belongs
-- ATOMIC all tasks in one step
-- COST O(n log N)
local keyed, lanes = LANES and lanes_from(11, 3), {}
local nonce, memory_ms = string.match(ARGV[4], '^(%d+)%-(%d+)$')
local steady_ms = steady(now_ms, meta[3], meta[4])
local ids, marks = {}, {}
for i = 6, #ARGV, 6 do
  ids[#ids + 1], marks[#marks + 1] = ARGV[i], ARGV[i] .. '\n' .. nonce
end
if #ids == 0 then return {'ok'} end
-- a key of the wrong type fails here, before anything is written
redis.call('HLEN', KEYS[5])
redis.call('ZCARD', KEYS[6])
redis.call('HLEN', KEYS[7])
local present = redis.call('HMGET', KEYS[2], unpack(ids))
local windows, known = redis.call('ZMSCORE', KEYS[8], unpack(ids)), redis.call('ZMSCORE', KEYS[8], unpack(marks))
local moving = ARGV[5] ~= '2' and redis.call('HMGET', KEYS[9], unpack(ids)) or {}
local answers, first, met, topics = {'ok'}, math.huge, {}, {}
local due, entering, shutting, dead, reasons, records, leases, noted = {}, {}, {}, {}, {}, {}, {}, {}
for n, id in ipairs(ids) do
  local i = n * 6
  local spec, kind = ARGV[i + 1], ARGV[i + 3]
  local answer
  if tonumber(known[n] or 0) > steady_ms then
    answer = 'known'
  elseif present[n] then
    answer = 'kept:' .. state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[6])
  elseif met[id] then
    answer = 'kept:' .. met[id] -- it is here twice
  elseif moving[n] then
    answer = 'moving'
  elseif tonumber(windows[n] or 0) > steady_ms then
    answer = 'seen'
  elseif ARGV[5] ~= '0' then
    answer = 'elsewhere'
  else
    answer = 'adopted'
    local at, lane = instant(spec), keyed and lane_of(id)
    met[id] = kind == 'dead' and 'dead' or 'scheduled'
    topics[topic_of(id)] = true
    if lane and string.byte(spec, -1) == 32 then shutting[#shutting + 1] = lane end
    if kind == 'dead' then
      dead[#dead + 1], dead[#dead + 2] = at, id
      reasons[#reasons + 1], reasons[#reasons + 2] = id, ARGV[i + 5]
    elseif lane then
      local in_front = kind == 'first' or kind == 'retry' and rules_of(lane).front
      due[#due + 1], due[#due + 2] = far(at), id
      entering[#entering + 1], entering[#entering + 2] = '0', entry_of(id, lane, at, in_front and 0)
      note(lanes, lane, not in_front and at)
    else
      due[#due + 1], due[#due + 2] = at, id
      if at < first then first = at end
    end
    records[#records + 1], records[#records + 2] = id, dated(ARGV[i + 2])
    if ARGV[i + 4] ~= '' then leases[#leases + 1], leases[#leases + 2] = id, ARGV[i + 4] end
  end
  if answer ~= 'moving' and answer ~= 'elsewhere' then
    noted[#noted + 1], noted[#noted + 2] = string.format('%.0f', steady_ms + memory_ms), marks[n]
  end
  answers[n + 1] = answer
end
-- as push does: a record without an id would stay for ever
if #due > 0 then redis.call('ZADD', KEYS[3], unpack(due)) end
if #entering > 0 then enters(entering) end
for _, lane in ipairs(shutting) do shut_lane(lane) end
if #dead > 0 then
  redis.call('ZADD', KEYS[6], unpack(dead))
  redis.call('HSET', KEYS[7], unpack(reasons))
end
if #records > 0 then redis.call('HSET', KEYS[2], unpack(records)) end
if #leases > 0 then redis.call('HSET', KEYS[5], unpack(leases)) end
if #noted > 0 then redis.call('ZADD', KEYS[8], unpack(noted)) end
-- a topic is listed from its first task on, and is not idle
for topic in pairs(topics) do
  redis.pcall('HSETNX', KEYS[10], topic, 0)
  redis.pcall('HDEL', KEYS[1], 'idle/' .. topic)
end
if keyed then first = math.min(first, rings(lanes)) end
if first < math.huge then rouse(first) end
return answers
