-- take: takes tasks out of this shard, and keeps each as a parcel in moved until it is put at its target.
-- USES: epoch, guard, begin, record, topic, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 lease HASH
-- KEYS 5 dead ZSET
-- KEYS 6 why HASH
-- KEYS 7 moved HASH
-- KEYS 8 keys ZSET, where the engine has keys
-- KEYS 9 placed ZSET, where the engine has keys
-- KEYS 10 alarms ZSET, where the engine has keys
-- KEYS 11 rests ZSET, where the engine has keys
-- KEYS 12 holds HASH, where the engine has keys
-- KEYS 13 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 number under which the target has reserved them
-- ARGV 4 shard they go to
-- ARGV 5.. ids, at most 1,000
-- RETURNS {'ok', id, parcel, …} those that were scheduled or dead here; a parcel is
--         'number|target|due, first:NUMBER (at the front of its lane, and the number under which it had left) or dead|instant|bytes of the lease entry|bytes of the reason|' and those two and the record | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC a task is here, or in moved
-- COST O(n log N), at most about 1 MiB of records; what is not taken is taken next time
local ids = {}
local keyed, leaving = LANES and lanes_from(8, 3), {}
for i = 5, #ARGV do ids[#ids + 1] = ARGV[i] end
-- most shards have nothing in these, and are then not asked for each task
local no_dead, no_leases = redis.call('ZCARD', KEYS[5]) == 0, redis.call('HLEN', KEYS[4]) == 0
local answer, moved, taken, bytes, at = {'ok'}, {}, {}, 0, 0
local was_due, was_dead, was_leased = {}, {}, {}
local due_parcel, dead_parcel = ARGV[3] .. '|' .. ARGV[4] .. '|', ARGV[3] .. '|' .. ARGV[4] .. '|dead|'
while at < #ids and bytes < 1048576 do
  -- records are read in chunks: each may be 1 MiB
  local chunk = {}
  for i = at + 1, math.min(#ids, at + next_chunk(1048576 - bytes, at, bytes)) do chunk[#chunk + 1] = ids[i] end
  local records = redis.call('HMGET', KEYS[2], unpack(chunk))
  local due = redis.call('ZMSCORE', KEYS[3], unpack(chunk))
  local dead = no_dead and {} or redis.call('ZMSCORE', KEYS[5], unpack(chunk))
  local leases = no_leases and {} or redis.call('HMGET', KEYS[4], unpack(chunk))
  for i, id in ipairs(chunk) do
    at = at + 1
    local record, score = records[i], due[i] or dead[i]
    local lane, kind = keyed and due[i] and lane_of(id), 'due|'
    -- a lane leaves once nothing of it is given here any more
    if lane and gate_of(lane) ~= 'closed' then score = nil end
    if record and score then
      if lane then
        leaving[#leaving + 1], leaving[#leaving + 2], leaving[#leaving + 3] = id, lane, score
        local number = front_of(id, lane) and number_of(front_of(id, lane), lane)
        if number then kind = string.format('first:%.0f|', number) end
      end
      bytes = bytes + #record
      local lease, parcel = leases[i] or ''
      if due[i] then
        parcel = due_parcel .. kind .. score .. '|' .. #lease .. '|0|' .. lease .. record
      else
        local why = redis.call('HGET', KEYS[6], id) or ''
        parcel = dead_parcel .. score .. '|' .. #lease .. '|' .. #why .. '|' .. lease .. why .. record
      end
      answer[#answer + 1], answer[#answer + 2] = id, parcel
      moved[#moved + 1], moved[#moved + 2] = id, parcel
      taken[#taken + 1] = id
      if due[i] then was_due[#was_due + 1] = id end
      if dead[i] then was_dead[#was_dead + 1] = id end
      if leases[i] then was_leased[#was_leased + 1] = id end
    end
  end
end
if #taken > 0 then
  begin() -- a user who may not remove must not add either: the task would be in two places
  redis.call('HSET', KEYS[7], unpack(moved))
  redis.call('HDEL', KEYS[2], unpack(taken))
  for i = 1, #leaving, 3 do lets_go({}, leaving[i], leaving[i + 1], leaving[i + 2]) end
  if #was_due > 0 then redis.call('ZREM', KEYS[3], unpack(was_due)) end
  if #was_dead > 0 then
    redis.call('ZREM', KEYS[5], unpack(was_dead))
    redis.call('HDEL', KEYS[6], unpack(was_dead))
  end
  if #was_leased > 0 then redis.call('HDEL', KEYS[4], unpack(was_leased)) end
  redis.pcall('HINCRBY', KEYS[1], 'moved', #taken)
end
return answer
