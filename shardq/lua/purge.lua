-- purge: removes the tasks of one topic, or of all, that are not leased: in each call a part of the ready list, of due and
-- of dead.
-- USES: epoch, guard, count, begin, rouse, topic, place, ghost, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 ghost HASH
-- KEYS 9 ready LIST
-- KEYS 10 keys ZSET, where the engine has keys
-- KEYS 11 placed ZSET, where the engine has keys
-- KEYS 12 alarms ZSET, where the engine has keys
-- KEYS 13 rests ZSET, where the engine has keys
-- KEYS 14 holds HASH, where the engine has keys
-- KEYS 15 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 topic of the ready list; of due and dead too, unless ARGV 5 is all
-- ARGV 5 topic | all
-- ARGV 6 where the scan of due goes on: the answer's, '0' to begin, 'end' when it is done
-- ARGV 7 the same for dead
-- ARGV 8 about how many to look at, up to 1,000
-- RETURNS {'ok', removed, left in the ready list, where due goes on, where dead goes on} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC what a call removes; tasks pushed while the calls go on may stay
-- COST O(n log N)
local count = tonumber(ARGV[8])
local removed = 0
local keyed, lanes = LANES and lanes_from(10, 3), {}
local function remove(ids)
  if #ids == 0 then return end
  redis.call('HDEL', KEYS[2], unpack(ids))
  local ending = keyed and unrevoked(ids) or ids
  if #ending > 0 then redis.call('HDEL', KEYS[5], unpack(ending)) end
  redis.call('HDEL', KEYS[7], unpack(ids))
  redis.call('ZREM', KEYS[3], unpack(ids))
  redis.call('ZREM', KEYS[6], unpack(ids))
end
-- a key of the wrong type fails here, before anything is removed
redis.call('ZCARD', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('HLEN', KEYS[5])
redis.call('ZCARD', KEYS[6])
redis.call('HLEN', KEYS[7])
redis.call('HLEN', KEYS[8])
begin()
redis.call('LTRIM', KEYS[9], 0, -1) -- changes nothing; a user who may not do it fails here
local ids = redis.call('LRANGE', KEYS[9], 0, count - 1)
if #ids > 0 then
  -- an entry may be the ghost of a task that is held now; such a task is left alone
  local records = redis.call('HMGET', KEYS[2], unpack(ids))
  local going, dropped = {}, 0
  for i, id in ipairs(ids) do
    if redis.call('HEXISTS', KEYS[8], id) == 1 then
      local left = redis.pcall('HINCRBY', KEYS[8], id, -1)
      if type(left) ~= 'table' and left >= 0 then dropped = dropped + 1 end
      if type(left) == 'table' or left <= 0 then redis.call('HDEL', KEYS[8], id) end -- also of what is no count
    elseif records[i] and not redis.call('ZSCORE', KEYS[4], id) then
      going[#going + 1] = id
    end
  end
  redis.call('LTRIM', KEYS[9], #ids, -1)
  if dropped > 0 then haunt(ARGV[4], -dropped) end
  removed = removed + #going
  remove(going)
  if keyed then frees(lanes, going) end
end
local function scanned(key, from)
  if from == 'end' then return from end
  local page
  if ARGV[5] == 'all' or ARGV[4] == '' then
    page = redis.call('ZSCAN', key, scan_from(from), 'COUNT', count)
  else
    page = redis.call('ZSCAN', key, scan_from(from), 'COUNT', count, 'MATCH', ARGV[4] .. '/*')
  end
  local going = {}
  for i = 1, #page[2], 2 do
    local id = page[2][i]
    local lane = keyed and key == KEYS[3] and lane_of(id)
    if ARGV[5] == 'all' or topic_of(id) == ARGV[4] then
      if lane then lets_go(lanes, id, lane, page[2][i + 1]) end
      going[#going + 1] = id
      if #going == 1000 then
        remove(going)
        removed, going = removed + 1000, {}
      end
    end
  end
  removed = removed + #going
  remove(going)
  return page[1] == '0' and 'end' or scan_on(page[1])
end
local due, dead = scanned(KEYS[3], ARGV[6]), scanned(KEYS[6], ARGV[7])
local first = keyed and rings(lanes) or math.huge
if first < math.huge then rouse(first) end
return {'ok', removed, redis.call('LLEN', KEYS[9]), due, dead}
