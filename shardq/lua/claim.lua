-- claim: gives ready tasks to one consumer under a lease, the topics in the order given.
-- USES: guard, begin, rouse, lease, record, draw, roomy
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 leased ZSET
-- KEYS 4 lease HASH
-- KEYS 5 ghost HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8.. ready LIST, in order of priority
-- KEYS 8+topics.. waiting ZSET, likewise
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 how many at most in all, up to 1,000; 0 only looks
-- ARGV 5 length of the lease in ms
-- ARGV 6 token of the lease, never used before
-- ARGV 7 what the wake channels of this shard begin with; a process's name follows
-- ARGV 8 the caller's process, to be woken for each list left empty, or '' when it does not wait
-- ARGV 9.. for each list: its topic, how many of it at most, attempts allowed to a task that brings no limit of its own
--         ('': the dispatcher says)
-- RETURNS {'ok', {what is left in each list, …}, {processes waiting for each list, …}, {id, failures, lapses, record, …}}
--         | {'stale', epoch} | {'missing'}
-- ATOMIC a task is in the answer and leased, or still in its list
-- COST O(n log M), at most about 1 MiB of records
local max, token = tonumber(ARGV[4]), ARGV[6]
local deadline = now_ms + tonumber(ARGV[5])
local haunted
local items, met, ghosts, odd, reasons = {}, {}, {}, {}, {}
local members, entries, taken_of, drained, back = {}, {}, {}, {}, {}
local given, read, bytes = 0, 0, 0
local lists = (#ARGV - 8) / 3
for list = 8, 7 + lists do
  local share, allowed = math.min(max - given, tonumber(ARGV[list * 3 - 14])), ARGV[list * 3 - 13]
  local first_lease = lease_entry(0, 0, allowed, token)
  local asked = share > 0 and bytes < 1048576
  local ids = asked and redis.call('LRANGE', KEYS[list], 0, share - 1) or {}
  local taken = 0
  if #ids > 0 and haunted == nil then haunted = redis.call('HLEN', KEYS[5]) > 0 end
  while taken < #ids and bytes < 1048576 do
    local chunk = {}
    for i = taken + 1, math.min(#ids, taken + next_chunk(1048576 - bytes, read, bytes)) do chunk[#chunk + 1] = ids[i] end
    local records = redis.call('HMGET', KEYS[2], unpack(chunk))
    local leases = redis.call('HMGET', KEYS[4], unpack(chunk))
    local counts = haunted and redis.call('HMGET', KEYS[5], unpack(chunk)) or {}
    for i, id in ipairs(chunk) do
      if bytes >= 1048576 then break end
      local record = records[i]
      taken = taken + 1
      if (ghosts[id] or 0) < tonumber(counts[i] or 0) then
        ghosts[id] = (ghosts[id] or 0) + 1
      elseif record and not met[id] then
        met[id] = true
        read, bytes = read + 1, bytes + #record
        local known, head = parts_of(record)
        if known and head and head.x and tonumber(head.x) <= now_ms then
          odd[#odd + 1], reasons[#reasons + 1] = id, 'expired'
        elseif known then
          local failures, lapses, entry = 0, 0, first_lease
          if leases[i] or (head and head.m) then
            failures, lapses = lease_of(leases[i])
            entry = lease_entry(failures, lapses, head and head.m or allowed, token)
          end
          given = given + 1
          local at = given * 4
          items[at - 3], items[at - 2], items[at - 1], items[at] = id, failures, lapses, record
          members[given * 2 - 1], members[given * 2] = deadline, id
          entries[given * 2 - 1], entries[given * 2] = id, entry
          back[given * 2 - 1], back[given * 2] = KEYS[list], id
        else
          odd[#odd + 1], reasons[#reasons + 1] = id, 'format'
        end
      end
    end
  end
  taken_of[list], drained[list] = taken, asked and taken == #ids and #ids < share
end
local held, known_leases
if given > 0 then held, known_leases = redis.call('ZCARD', KEYS[3]), redis.call('HLEN', KEYS[4]) end
-- what is not handed out is accounted for before it leaves its list: refused halfway, it is met again
if #odd > 0 or next(ghosts) then
  -- a key of the wrong type fails here, before anything is written
  redis.call('ZCARD', KEYS[6])
  redis.call('HLEN', KEYS[7])
  begin()
  for list = 8, 7 + lists do redis.call('LTRIM', KEYS[list], 0, -1) end -- may it be done? it changes nothing yet
end
for i, id in ipairs(odd) do
  redis.call('ZADD', KEYS[6], now_ms, id)
  redis.call('HSET', KEYS[7], id, reasons[i])
end
for id, count in pairs(ghosts) do
  if redis.call('HINCRBY', KEYS[5], id, -count) <= 0 then redis.call('HDEL', KEYS[5], id) end
end
for list = 8, 7 + lists do
  if taken_of[list] > 0 then redis.call('LTRIM', KEYS[list], taken_of[list], -1) end
end
if given > 0 then
  -- after the removal, so that a server without memory still hands out; refused all the same: put everything back
  local widen, widen_leases = roomy(held, 128, given), roomy(known_leases, 512, given)
  if widen then redis.pcall('ZADD', KEYS[3], deadline, FILLER) end
  local failure = redis.pcall('ZADD', KEYS[3], unpack(members))
  if widen then redis.pcall('ZREM', KEYS[3], FILLER) end
  if type(failure) ~= 'table' then
    if widen_leases then redis.pcall('HSET', KEYS[4], '', FILLER) end
    failure = redis.pcall('HSET', KEYS[4], unpack(entries))
    if widen_leases then redis.pcall('HDEL', KEYS[4], '') end
    if type(failure) == 'table' then
      for i = 1, given do redis.call('ZREM', KEYS[3], members[i * 2]) end
    end
  end
  if type(failure) == 'table' then
    for i = given, 1, -1 do redis.call('LPUSH', back[i * 2 - 1], back[i * 2]) end
    return failure
  end
end
local lengths, crowds = {}, {}
for i = 1, lists do
  local waiting = KEYS[7 + lists + i]
  lengths[i] = drained[7 + i] and 0 or redis.call('LLEN', KEYS[7 + i])
  if lengths[i] > 0 then
    -- more than this caller takes: the next one is woken, who will wake the next
    if taken_of[7 + i] > 0 then draw(ARGV[6 + i * 3], waiting, 1, ARGV[7]) end
  elseif ARGV[8] ~= '' then
    -- a process that did not come back for an hour is gone: who waits looks again at least every half hour
    if redis.pcall('ZADD', waiting, 'NX', now_ms, ARGV[8]) == 1 then
      redis.pcall('ZREMRANGEBYSCORE', waiting, '-inf', now_ms - 3600000)
    end
  end
  local crowd = ARGV[8] ~= '' and redis.pcall('ZCARD', waiting)
  crowds[i] = type(crowd) == 'number' and crowd or 0
end
if given > 0 and deadline - now_ms <= STEP_MS then rouse(deadline) end
return {'ok', lengths, crowds, items}
