-- dead: returns a page of the dead tasks, the earliest death first.
-- USES: guard, record
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 lease HASH
-- KEYS 4 dead ZSET
-- KEYS 5 why HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 id of the last task of the page before, or ''
-- ARGV 4 time of its death in ms, as answered
-- ARGV 5 how many at most, up to 1,000
-- RETURNS {'ok', {id, time of death in ms, reason, lease entry or '', record, …}} empty at the end | {'stale', epoch} | {'missing'}
-- ATOMIC one page; tasks that die or are requeued between two pages may be missed
-- COST O(log N + n), at most about 1 MiB of records
local first = 0
if ARGV[3] ~= '' then
  local rank = redis.call('ZRANK', KEYS[4], ARGV[3])
  first = rank and rank + 1 or redis.call('ZCOUNT', KEYS[4], '-inf', '(' .. ARGV[4])
end
local page = redis.call('ZRANGE', KEYS[4], first, first + tonumber(ARGV[5]) - 1, 'WITHSCORES')
local ids, items, taken, bytes = {}, {}, 0, 0
for i = 1, #page, 2 do ids[#ids + 1] = page[i] end
while taken < #ids and bytes < 1048576 do
  local chunk = {}
  for i = taken + 1, math.min(#ids, taken + next_chunk(1048576 - bytes, taken, bytes)) do chunk[#chunk + 1] = ids[i] end
  local records = redis.call('HMGET', KEYS[2], unpack(chunk))
  local leases = redis.call('HMGET', KEYS[3], unpack(chunk))
  local reasons = redis.call('HMGET', KEYS[5], unpack(chunk))
  for i, id in ipairs(chunk) do
    if bytes >= 1048576 then break end
    taken = taken + 1
    bytes = bytes + #(records[i] or '')
    items[#items + 1] = id
    items[#items + 1] = page[taken * 2]
    items[#items + 1] = reasons[i] or ''
    items[#items + 1] = leases[i] or ''
    items[#items + 1] = records[i] or ''
  end
end
return {'ok', items}
