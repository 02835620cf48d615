-- open: creates a shard's meta, or gives it a newer epoch. No other script does either.
-- USES: begin, epoch, settings
-- KEYS 1 meta HASH
-- KEYS 2 copy HASH
-- KEYS 3 alarms ZSET
-- KEYS 4 gates HASH
-- ARGV 1 epoch
-- ARGV 2 the topology of that epoch, as text
-- ARGV 3 '1' for a shard that comes into use: it forgets that it was polled and swept before, and who died; else '0'
-- ARGV 4 epoch in which the number of shards of that topology came in force
-- ARGV 5 numbers of shards by which it looks for tasks, as n,n,…: the present one last
-- ARGV 6 '1' to open the shard whatever it knew; else '0'
-- ARGV 7 a random word, kept where there was no meta: another one says that the shard had lost everything
-- ARGV 8 bell channel
-- ARGV 9 epoch since which these settings changed; '' when no other topics have any
-- ARGV 10.. topic, its settings or '' for none, …
-- RETURNS {'ok', 1 when there was no meta, else 0} | {'stale', epoch} |
--         {'owed', topology that the shard knows, as text} tasks may lie here by a number that is not in ARGV 5, or
--         with keys, of which ARGV 2 does not know: nothing was written | {'unrelated'} the shard's settings are of another epoch than ARGV 9: nothing was written
-- ATOMIC
-- COST O(topics + numbers)
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'topology', 'swept', 'since', 'numbers')
local known, theirs = epoch_of(meta[1])
if meta[1] ~= ARGV[1] then
  local mine, own = epoch_of(ARGV[1])
  if known >= mine or (theirs ~= own and theirs ~= '') then return {'stale', meta[1]} end
  if ARGV[6] ~= '1' and meta[5] then
    -- a shard that was swept has tasks by the number of then alone
    for number in string.gmatch(meta[3] == meta[4] and string.match(meta[5], '%d*$') or meta[5], '%d+') do
      if not string.find(',' .. ARGV[5] .. ',', ',' .. number .. ',', 1, true) then return {'owed', meta[2] or ''} end
    end
  end
  local has_keys = string.find(meta[2] or '', '"keyed":%s*true') and not string.find(ARGV[2], '"keyed":%s*true')
  if ARGV[6] ~= '1' and has_keys then return {'owed', meta[2]} end
  if ARGV[9] ~= '' and ARGV[9] ~= meta[1] then return {'unrelated'} end
end
-- limit_of(window): how many of a lane may be out by it, and the ms between two.
local function limit_of(window)
  local most, interval = string.match(window or '', '^(%d+):([%d.]+):')
  return {tonumber(most or 1), tonumber(interval or 0)}
end
redis.call('HLEN', KEYS[2]) -- a key of another type ends it here
begin() -- also out of memory: a shard that does not know its topology drains nothing
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'topology', ARGV[2], 'since', ARGV[4], 'numbers', ARGV[5])
if ARGV[9] == '' then redis.call('DEL', KEYS[2]) end
local topics = {}
for i = 10, #ARGV do topics[#topics + 1] = ARGV[i] end
keep_settings(KEYS[2], topics)
-- set_window(topic, window): writes the window of a topic's keys, as scripts read it. Where that is another one, dispatch looks over
-- the lanes of the topic; where fewer may be out than before, or a rate is lower, or lifted, claim does.
local changed = false
local function set_window(topic, window)
  local field = 'keys/' .. topic
  local before = redis.call('HGET', KEYS[1], field) or nil
  if before == window then return end
  if window then
    redis.call('HSET', KEYS[1], field, window)
  else
    redis.call('HDEL', KEYS[1], field)
  end
  if not meta[1] then return end -- there is no lane
  redis.call('HSET', KEYS[1], 'cursor/' .. topic, '')
  redis.call('ZADD', KEYS[3], '0', topic .. '/')
  local now, past = limit_of(window), limit_of(before)
  if now[1] < past[1] or now[2] > past[2] or now[2] < past[2] and now[2] == 0 then redis.call('HSET', KEYS[1], 'lowered/' .. topic, '') end
  changed = true
end
local given = {}
for i = 1, #topics, 2 do
  local limit = string.match(topics[i + 1], '"limit":(%b{})') or ''
  local most, rate = string.match(limit, '"per_key":(%d+)'), tonumber(string.match(limit, '"per_key_rate":([%d.e+-]+)') or 0)
  local mode = string.find(limit, '"on_failure":"skip"', 1, true) and 'skip' or 'wait'
  local any = most or rate > 0 or mode == 'skip'
  set_window(topics[i], any and string.format('%s:%.6f:%s', most or '1', rate > 0 and 1000 / rate or 0, mode) or nil)
  given[topics[i]] = true
end
if ARGV[9] == '' then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    local topic = string.match(field, '^keys/(.*)$')
    if topic and not given[topic] then set_window(topic, nil) end
  end
end
if not meta[1] then redis.call('HSET', KEYS[1], 'opened', ARGV[7]) end
if ARGV[3] == '1' then
  redis.call('HDEL', KEYS[1], 'wake_at', 'swept')
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 5) == 'died/' then redis.call('HDEL', KEYS[1], field) end
  end
end
if not string.find(ARGV[5], ',', 1, true) then
  -- no number of shards changes any more: what has come here of a lane is given out
  local gates, alarms = redis.call('HGETALL', KEYS[4]), {}
  for i = 1, #gates, 2 do
    if string.sub(gates[i + 1], 1, 4) == 'shut' then alarms[#alarms + 1], alarms[#alarms + 2] = 0, gates[i] end
  end
  for i = 1, #alarms, 2000 do redis.call('ZADD', KEYS[3], unpack(alarms, i, math.min(i + 1999, #alarms))) end
  redis.call('DEL', KEYS[4])
  changed = changed or #alarms > 0
end
if changed then
  redis.call('HSET', KEYS[1], 'wake_at', '0')
  redis.pcall('SPUBLISH', ARGV[8], '')
end
return {'ok', meta[1] and 0 or 1}
