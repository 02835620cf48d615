-- page: returns a page of the ids that are scheduled, leased or dead: by their instants, and those of one instant by
-- their bytes. An id keeps its place in this order wherever it is, so the pages of all shards are merged by it.
-- USES: guard, lease, topic
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- KEYS 3 leased ZSET
-- KEYS 4 dead ZSET
-- KEYS 5 lease HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 scheduled | leased | dead
-- ARGV 4 instant at which the page begins, in ms, or '-inf'
-- ARGV 5 id of that instant after which it begins, or '' for all ids of that instant
-- ARGV 6 instant before which it ends, in ms, or '+inf'
-- ARGV 7 '=' and the topic, or '' for all
-- ARGV 8 holder of leases, with or without the random part of its name, or '' for all
-- ARGV 9 how many ids at most
-- ARGV 10 how many to look at at most, up to 1,000
-- RETURNS {'ok', now_us, 1 when nothing follows, else 0, looked at, instant of the last one looked at, its id, {id, instant, …}} | {'stale', epoch} | {'missing'}
-- ATOMIC one page
-- COST O(log² N + n)
local index = ARGV[3] == 'leased' and KEYS[3] or ARGV[3] == 'dead' and KEYS[4] or KEYS[2]
local from, after, to = ARGV[4], ARGV[5], tonumber(ARGV[6]) or math.huge
local topic, holder, most, look = ARGV[7], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
-- by bytes, as a ZSET: `<` goes by the server's locale
local function follows(id, other)
  for i = 1, math.min(#id, #other) do
    local ours, theirs = string.byte(id, i), string.byte(other, i)
    if ours ~= theirs then return ours > theirs end
  end
  return #id > #other
end
local function held(entry)
  local _, _, _, token = lease_of(entry)
  local name = string.match(token, '^(.*):%d+$') or token
  return name == holder or string.match(name, '^(.*)%-' .. string.rep('%x', 12) .. '$') == holder
end
local first = redis.call('ZCOUNT', index, '-inf', '(' .. from)
if after ~= '' then
  -- any number of tasks may be due at one instant: the place among them is found by halving
  local past = first + redis.call('ZCOUNT', index, from, from)
  while first < past do
    local middle = math.floor((first + past) / 2)
    if follows(redis.call('ZRANGE', index, middle, middle)[1], after) then past = middle else first = middle + 1 end
  end
end
local page = redis.call('ZRANGE', index, first, first + look - 1, 'WITHSCORES')
local ids, entries = {}, {}
for i = 1, #page, 2 do ids[#ids + 1] = page[i] end
if holder ~= '' and #ids > 0 then entries = redis.call('HMGET', KEYS[5], unpack(ids)) end
local items, looked, at_end = {}, 0, #ids < look
for i, id in ipairs(ids) do
  if tonumber(page[i * 2]) >= to then
    at_end = true
    break
  end
  if #items == most * 2 then
    at_end = false
    break
  end
  looked = i
  if (topic == '' or '=' .. topic_of(id) == topic) and (holder == '' or held(entries[i])) then
    items[#items + 1] = id
    items[#items + 1] = page[i * 2]
  end
end
return {
  'ok', string.format('%.0f', now_us), at_end and 1 or 0, looked, page[looked * 2] or '', ids[looked] or '', items,
}
