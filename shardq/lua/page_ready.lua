-- page_ready: returns a page of the ids of one ready list, from the left. The place of an entry is the number of the
-- entries that dispatch had put on the list with it: it stays the same while others leave on the left.
-- USES: epoch, guard, count
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 dead ZSET
-- KEYS 6 topics HASH
-- KEYS 7 ready LIST
-- KEYS 8 ghost HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 topic of the list
-- ARGV 4 place after which the page begins, or ''
-- ARGV 5 how many to look at at most, up to 1,000
-- RETURNS {'ok', 1 when nothing follows, else 0, looked at, place of the last one looked at or '', {place, id, …}, {id that has ghosts, …}} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC one page; an id with ghosts may be in two pages
-- COST O(n), and a step for some hundred entries before the page
local dispatched, length = count_of(redis.call('HGET', KEYS[6], ARGV[3])), redis.call('LLEN', KEYS[7])
-- the last entry has the place `dispatched`, the one before it the place before that
local before_first, first = dispatched - length, 0
local after = tonumber(ARGV[4])
-- a shard that was opened anew counts anew
if after and after <= dispatched then first = math.max(0, after - before_first) end
local ids = redis.call('LRANGE', KEYS[7], first, first + tonumber(ARGV[5]) - 1)
local items, haunted = {}, {}
if #ids > 0 then
  local due, leased = redis.call('ZMSCORE', KEYS[3], unpack(ids)), redis.call('ZMSCORE', KEYS[4], unpack(ids))
  local dead, met = redis.call('ZMSCORE', KEYS[5], unpack(ids)), {}
  local ghosts = redis.call('HLEN', KEYS[8]) > 0 and redis.call('HMGET', KEYS[8], unpack(ids)) or {}
  for i, id in ipairs(ids) do
    if not (due[i] or leased[i] or dead[i] or met[id]) and redis.call('HEXISTS', KEYS[2], id) == 1 then
      met[id] = true
      items[#items + 1] = string.format('%.0f', before_first + first + i)
      items[#items + 1] = id
      if count_of(ghosts[i]) > 0 then haunted[#haunted + 1] = id end
    end
  end
end
local last = first + #ids
return {'ok', last >= length and 1 or 0, #ids, #ids > 0 and string.format('%.0f', before_first + last) or '', items, haunted}
