-- peek: counts the tasks of a shard by their state, and draws some of them to tell their topics; notes how many of each topic
-- were dispatched by now, so that it and later looks know how long the head of its ready list has waited at least.
-- USES: epoch, guard, count, topic, ghost, lease
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- KEYS 3 leased ZSET
-- KEYS 4 dead ZSET
-- KEYS 5 topics HASH
-- KEYS 6 looks HASH
-- KEYS 7 task HASH
-- KEYS 8 lease HASH
-- KEYS 9 why HASH
-- KEYS 10 ghost HASH
-- KEYS 11 seen ZSET
-- KEYS 12 moved HASH
-- KEYS 13.. ready LIST, one for each topic of ARGV 4..
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 how many ids to draw from each of due, leased, dead and lease, at most; where one of the first three has no more than
--         32 times as many, and no more than 6,400, all of them are told instead: that takes a millisecond
-- ARGV 4.. topics
-- RETURNS {'ok', name, value, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}. The names: now_us, scheduled, held, leased, dead,
--         head: due of the first scheduled in ms or ''; of meta, or nil: late, reaped, buried, forwarded, dispatched_retired and
--         died_retired of retired topics; dispatched: {topic, how many, …}; lengths: {tasks in each list given, …};
--         waited: {ms that the head of each is known to be ready, or -1 without one, …};
--         drawn_scheduled: {topic, how many of those drawn, …}, likewise drawn_held, drawn_leased, drawn_dead; drawn_retrying:
--         likewise of those drawn from lease that are due with an attempt that failed, with the others under a line feed;
--         entries: how many are in lease, 0 if all of these are leased; died: {topic, how many of it died, …};
--         died_lately: how many of the dead died in the last ten minutes; of meta, or nil: trimmed, trimmed_ms
-- ATOMIC one shard at one instant; a note that is refused, for want of memory or of the right to write, is left out
-- COST O(topics + n)
local most = tonumber(ARGV[3])
-- a key of another type fails here, in a line of its own, by which the caller names it: what needs it would fail, too, and a
-- look would say that all is well
local waiting = redis.call('ZCARD', KEYS[2])
local keyed = redis.call('ZCOUNT', KEYS[2], far(0), '+inf') > 0
local held = keyed and redis.call('ZCOUNT', KEYS[2], far(0), far(now_ms)) or 0
local leased = redis.call('ZCARD', KEYS[3])
local dead = redis.call('ZCARD', KEYS[4])
redis.call('HLEN', KEYS[7])
local entries = redis.call('HLEN', KEYS[8])
redis.call('HLEN', KEYS[9])
redis.call('HLEN', KEYS[10])
redis.call('ZCARD', KEYS[11])
redis.call('HLEN', KEYS[12])
local function by_topic(ids, topic)
  local counts, order, flat = {}, {}, {}
  for i, id in ipairs(ids) do
    local name = topic(id, i)
    if not counts[name] then order[#order + 1] = name end
    counts[name] = (counts[name] or 0) + 1
  end
  table.sort(order)
  for i, name in ipairs(order) do flat[i * 2 - 1], flat[i * 2] = name, counts[name] end
  return flat
end
-- ids in their order cost a tenth of ids drawn at random
local whole = math.max(most, math.min(32 * most, 6400))
local function drawn(key, count)
  if most == 0 then return {} end
  if count <= whole then return by_topic(redis.call('ZRANGE', key, 0, -1), topic_of) end
  return by_topic(redis.call('ZRANDMEMBER', key, most), topic_of)
end
local function drawn_due()
  if most == 0 or not keyed then return drawn(KEYS[2], waiting), {} end
  local flat, scheduled, on_hold = {}, {}, {}
  if waiting <= whole then
    flat = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
  else
    flat = redis.call('ZRANDMEMBER', KEYS[2], most, 'WITHSCORES')
  end
  for i = 1, #flat, 2 do
    local score = tonumber(flat[i + 1])
    local ids = score >= FAR and score <= FAR + now_ms and on_hold or scheduled
    ids[#ids + 1] = flat[i]
  end
  return by_topic(scheduled, topic_of), by_topic(on_hold, topic_of)
end
-- each leased task has an entry: if there are no more than these, none has failed and waits
if entries <= leased then entries = 0 end
local function retrying()
  local ids = most > 0 and entries > 0 and redis.call('HRANDFIELD', KEYS[8], most) or {}
  if #ids == 0 then return {} end
  local due, known = redis.call('ZMSCORE', KEYS[2], unpack(ids)), redis.call('HMGET', KEYS[8], unpack(ids))
  return by_topic(ids, function(id, i) return due[i] and lease_of(known[i]) > 0 and topic_of(id) or '\n' end)
end
local function mapped(fields)
  local map = {}
  for i = 1, #fields, 2 do map[fields[i]] = fields[i + 1] end
  return map
end

-- A note is a mark 'DISPATCHED:MS': at that instant so many of the topic had been dispatched. They leave the list in the order in
-- which they came: its head is the one after DISPATCHED now less its length, and was there at each mark past that.
local MARKS = 8
-- The mark of dispatch is of the instant at which the list was no longer empty.
local function noted(began, text, taken, dispatched)
  local marks = {}
  for count, at in string.gmatch((began or '') .. ' ' .. (text or ''), '(%d+):(%d+)') do
    local mark, before = {tonumber(count), tonumber(at)}, marks[#marks]
    if mark[1] > (before and before[1] or taken) and mark[1] <= dispatched and mark[2] <= now_ms then marks[#marks + 1] = mark end
  end
  local last = marks[#marks]
  if not last or (last[1] < dispatched and last[2] <= now_ms - 1000) then marks[#marks + 1] = {dispatched, now_ms} end
  if #marks > MARKS then
    -- the one goes whose neighbours are nearest to each other, for their age: so the error stays a part of the age
    local least, found = math.huge, 2
    for i = 2, #marks - 1 do
      local gap = (marks[i + 1][2] - marks[i - 1][2]) / (now_ms - marks[i - 1][2] + 1)
      if gap < least then least, found = gap, i end
    end
    table.remove(marks, found)
  end
  return marks
end
local topics = redis.call('HGETALL', KEYS[5])
local dispatched, looks = mapped(topics), #KEYS > 12 and mapped(redis.call('HGETALL', KEYS[6])) or {}
local lengths, waited, notes, emptied, vanished = {}, {}, {}, {}, {}
for i = 13, #KEYS do
  local topic, length = ARGV[i - 9], redis.call('LLEN', KEYS[i])
  local known = redis.call('HMGET', KEYS[1], 'ghosts/' .. topic, 'began/' .. topic)
  local count, ghosts = count_of(dispatched[topic]), math.max(0, count_of(known[1]))
  -- a list that was removed as a whole took its ghosts along
  if ghosts > length then vanished[topic], ghosts = ghosts - length, length end
  lengths[i - 12], waited[i - 12] = length - ghosts, -1
  if length > ghosts then
    local marks, texts = noted(known[2], looks[topic], count - length, count), {}
    for j, mark in ipairs(marks) do texts[j] = string.format('%.0f:%.0f', mark[1], mark[2]) end
    waited[i - 12] = now_ms - marks[1][2]
    local text = table.concat(texts, ' ')
    if text ~= looks[topic] then notes[topic] = text end
  elseif looks[topic] then
    emptied[#emptied + 1] = topic
  end
end
local died = {}
for from = 1, #topics, 2000 do
  local fields = {}
  for i = from, math.min(from + 1998, #topics), 2 do fields[#fields + 1] = 'died/' .. topics[i] end
  for i, count in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
    if count then died[#died + 1], died[#died + 2] = topics[from + i * 2 - 2], count end
  end
end
local head = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
if keyed then
  local id = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. far(now_ms), '+inf', 'LIMIT', 0, 1)[1]
  local first = id and redis.call('ZSCORE', KEYS[2], id)
  local at = math.min(tonumber(head) < FAR and tonumber(head) or math.huge, first and tonumber(first) - FAR or math.huge)
  head = at < math.huge and string.format('%.0f', at) or nil
end
local drawn_scheduled, drawn_held = drawn_due()
local known = redis.call('HMGET', KEYS[1], 'late', 'reaped', 'buried', 'forwarded', 'dispatched', 'died', 'trimmed', 'trimmed_at')
local answer = {
  'ok', 'now_us', string.format('%.0f', now_us), 'scheduled', waiting - held, 'held', held, 'leased', leased, 'dead', dead,
  'head', head or '', 'late', known[1], 'reaped', known[2], 'buried', known[3], 'forwarded', known[4],
  'dispatched_retired', known[5], 'died_retired', known[6], 'dispatched', topics, 'lengths', lengths, 'waited', waited,
  'drawn_scheduled', drawn_scheduled, 'drawn_held', drawn_held, 'drawn_leased', drawn(KEYS[3], leased),
  'drawn_dead', drawn(KEYS[4], dead), 'drawn_retrying', retrying(), 'entries', entries, 'died', died,
  'died_lately', redis.call('ZCOUNT', KEYS[4], string.format('%.0f', now_ms - 600000), '+inf'),
  'trimmed', known[7], 'trimmed_ms', known[8],
}
-- written once all is read: where a key is of another type, nothing is noted. Removals come first: after one a server
-- without memory takes the rest
for _, topic in ipairs(emptied) do redis.pcall('HDEL', KEYS[6], topic) end
for topic, number in pairs(vanished) do haunt(topic, -number) end
for topic, text in pairs(notes) do redis.pcall('HSET', KEYS[6], topic, text) end
return answer
