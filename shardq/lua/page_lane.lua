-- page_lane: returns a page of the tasks of one lane: what is leased, then what is ready, both by the bytes of their ids, then what
-- waits, in the order in which it goes. The place of a task is its state and its id; of one that waits its member of keys.
-- USES: epoch, guard, topic
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- KEYS 3 leased ZSET
-- KEYS 4 keys ZSET
-- KEYS 5 placed ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 lane
-- ARGV 4 leased | ready | scheduled: the page begins with these
-- ARGV 5 id, or member of keys, of that state after which it begins, or '' for all
-- ARGV 6 how many tasks at most, up to 1,000
-- RETURNS {'ok', 1 when nothing follows, else 0, {id leased, …}, {id ready, …}, {member of keys, …}} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC one page
-- COST O(log N + n), n with the up to 1,000 that are ready or leased
local lane, from, after, left = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local low, high = '[' .. lane, '(' .. string.sub(lane, 1, -2) .. '0'
local out, waiting, whole = {leased = {}, ready = {}}, {}, 1
local ids = from == 'scheduled' and {} or redis.call('ZRANGEBYLEX', KEYS[5], low, high, 'LIMIT', 0, 1000)
if #ids > 0 then
  local due, ends = redis.call('ZMSCORE', KEYS[2], unpack(ids)), redis.call('ZMSCORE', KEYS[3], unpack(ids))
  for i, id in ipairs(ids) do
    local state = ends[i] and 'leased' or 'ready'
    local is_listed = state == from and after ~= '' and not follows(id, after) or state == 'leased' and from == 'ready'
    -- what was replaced while it was leased has a place, and waits
    if not is_listed and not due[i] then table.insert(out[state], id) end
  end
end
for _, list in ipairs({out.leased, out.ready}) do
  while #list > left do list[#list], whole = nil, 0 end
  left = left - #list
end
if whole == 1 then
  if from == 'scheduled' and after ~= '' then low = '(' .. after end
  waiting = redis.call('ZRANGEBYLEX', KEYS[4], low, high, 'LIMIT', 0, left + 1)
  if #waiting > left then waiting[#waiting], whole = nil, 0 end
end
return {'ok', whole, out.leased, out.ready, waiting}
