-- page: returns a page of the ids that are scheduled, held, leased or dead: by their instants, and those of one instant by
-- their bytes, or exactly the other way round. An id keeps its place in this order wherever it is, so the pages of all
-- shards are merged by it.
-- USES: epoch, guard, lease, topic
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- KEYS 3 leased ZSET
-- KEYS 4 dead ZSET
-- KEYS 5 lease HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 scheduled (without a key) | keyed (scheduled, with one) | held | leased | dead
-- ARGV 4 instant at which the page begins, in ms, or '-inf'; newest first '+inf'
-- ARGV 5 id of that instant after which it begins, or '' for all ids of that instant
-- ARGV 6 instant at which it ends, itself not included, in ms, or '+inf'; newest first '-inf'
-- ARGV 7 '=' and the topic, or '' for all
-- ARGV 8 holder of leases, with or without the random part of its name, or '' for all
-- ARGV 9 how many ids at most
-- ARGV 10 how many to look at at most, up to 1,000
-- ARGV 11 newest for the latest instant first, or ''
-- ARGV 12 failed for tasks with an attempt that failed only, or ''; not with newest
-- ARGV 13 key, or '' for all tasks
-- RETURNS {'ok', name, value, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}. The names: now_us; whole, 1 when nothing
--         follows, else 0; looked_at; last_ms and last, instant and id of the last one looked at; ids: {id, instant, …}
-- ATOMIC one page
-- COST O(log² N + n). With failed O(m log m) where no more than 4,000 tasks, m, have an entry in lease
local index = ARGV[3] == 'leased' and KEYS[3] or ARGV[3] == 'dead' and KEYS[4] or KEYS[2]
local from, after, to, newest = ARGV[4], ARGV[5], not string.find(ARGV[6], 'inf') and tonumber(ARGV[6]), ARGV[11] == 'newest'
local failed = ARGV[12] == 'failed'
-- what has a key stands FAR behind its instant
local shift, key = (ARGV[3] == 'keyed' or ARGV[3] == 'held') and FAR or 0, ARGV[13]
if ARGV[3] == 'scheduled' and newest then
  if from == '+inf' then from = far(0) end
elseif ARGV[3] == 'scheduled' then
  to = math.min(to or FAR, FAR)
elseif shift > 0 then
  local first = ARGV[3] == 'held' and FAR or FAR + now_ms + 1
  local begin_ms = from == '-inf' and first or tonumber(from) + FAR
  if begin_ms < first then begin_ms, after = first, '' end
  from, to = string.format('%.0f', begin_ms), to and to + FAR
  if ARGV[3] == 'held' then to = math.min(to or math.huge, FAR + now_ms + 1) end
end
local topic, wanted, holder, most, look = ARGV[7], string.sub(ARGV[7], 2), ARGV[8], math.max(0, tonumber(ARGV[9])), tonumber(ARGV[10])
local function held(entry)
  local _, _, _, token = lease_of(entry)
  local name = string.match(token, '^(.*):[%d#]+$') or token
  return name == holder or string.match(name, '^(.*)%-' .. string.rep('%x', 12) .. '$') == holder
end
local function has_failed(entry) return (lease_of(entry)) > 0 end
-- where few tasks have an entry, those that have failed are found by it, and not among all that wait; each leased task has one
local known = failed and redis.call('HLEN', KEYS[5])
local none = failed and known <= redis.call('ZCARD', KEYS[3])
local few = failed and (none or known <= 4000) and {}
local function read(start, stop)
  if few then
    local page = {}
    for i = start + 1, math.min(stop + 1, #few) do page[#page + 1], page[#page + 2] = few[i].id, few[i].at end
    return page
  end
  if newest then return redis.call('ZRANGE', index, start, stop, 'REV', 'WITHSCORES') end
  return redis.call('ZRANGE', index, start, stop, 'WITHSCORES')
end
local first = 0
if few then
  local begin_ms, ids = from == '-inf' and -math.huge or tonumber(from), {}
  local entries = none and {} or redis.call('HGETALL', KEYS[5])
  for i = 1, #entries, 2 do
    if has_failed(entries[i + 1]) then ids[#ids + 1] = entries[i] end
  end
  for i, at in ipairs(#ids > 0 and redis.call('ZMSCORE', index, unpack(ids)) or {}) do
    local ms = at and tonumber(at)
    if ms and (ms > begin_ms or ms == begin_ms and (after == '' or follows(ids[i], after))) then
      few[#few + 1] = {ms = ms, at = at, id = ids[i]}
    end
  end
  table.sort(few, function(a, b) return a.ms < b.ms or a.ms == b.ms and follows(b.id, a.id) end)
else
  first = newest and redis.call('ZCOUNT', index, '(' .. from, '+inf') or redis.call('ZCOUNT', index, '-inf', '(' .. from)
  if after ~= '' then
    -- any number of tasks may be due at one instant: the place among them is found by halving
    local past = first + redis.call('ZCOUNT', index, from, from)
    while first < past do
      local middle = math.floor((first + past) / 2)
      local id = read(middle, middle)[1]
      if newest and follows(after, id) or not newest and follows(id, after) then past = middle else first = middle + 1 end
    end
  end
end
local items, looked, last, at_end, full = {}, 0, {'', ''}, false, false
-- what is read grows as long as it is not enough: of all tasks the first ones are those asked for, of few topics are not
local step = most + 1
while looked < look and not at_end and not full do
  step = math.min(step, look - looked)
  local page = read(first + looked, first + looked + step - 1)
  local ids, entries = {}, {}
  for i = 1, #page, 2 do ids[#ids + 1] = page[i] end
  if (failed or holder ~= '') and #ids > 0 then entries = redis.call('HMGET', KEYS[5], unpack(ids)) end
  at_end = #ids < step
  for i, id in ipairs(ids) do
    local at = tonumber(page[i * 2])
    if to and (newest and at <= to or not newest and at >= to) then
      at_end = true
      break
    end
    if #items == most * 2 then
      at_end, full = false, true
      break
    end
    looked = looked + 1
    last = {shift > 0 and string.format('%.0f', at - shift) or page[i * 2], id}
    local matches = (topic == '' or topic_of(id) == wanted) and (key == '' or string.match(id, '^[^/]*/([^/]+)/') == key)
    if matches and (holder == '' or held(entries[i])) and (not failed or has_failed(entries[i])) then
      items[#items + 1] = id
      items[#items + 1] = last[1]
    end
  end
  step = step * 2
end
return {
  'ok', 'now_us', string.format('%.0f', now_us), 'whole', at_end and 1 or 0, 'looked_at', looked,
  'last_ms', last[1], 'last', last[2], 'ids', items,
}
