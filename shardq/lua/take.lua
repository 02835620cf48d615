-- take: takes tasks out of this shard, all of each at once, and keeps them in moved until they are put where they go.
-- USES: guard, begin
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 lease HASH
-- KEYS 5 dead ZSET
-- KEYS 6 why HASH
-- KEYS 7 moved HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 number under which the target has reserved them
-- ARGV 4 shard they go to
-- ARGV 5.. ids, at most 1,000
-- RETURNS {'ok', id, parcel, …} those that were scheduled or dead here; a parcel is 'number|target|msgpack' | {'stale', epoch} | {'missing'}
-- ATOMIC a task is here, or in moved
-- COST O(n log N), at most about 1 MiB of records; what is not taken is taken next time
local ids = {}
for i = 5, #ARGV do ids[#ids + 1] = ARGV[i] end
local answer, moved, taken, bytes, at = {'ok'}, {}, {}, 0, 0
while at < #ids and bytes < 1048576 do
  -- records are read in chunks: each may be 1 MiB
  local chunk = {}
  for i = at + 1, math.min(#ids, at + (bytes == 0 and 4 or math.max(1, math.min(200, math.floor((1048576 - bytes) * at / bytes))))) do
    chunk[#chunk + 1] = ids[i]
  end
  local records = redis.call('HMGET', KEYS[2], unpack(chunk))
  local due = redis.call('ZMSCORE', KEYS[3], unpack(chunk))
  local dead = redis.call('ZMSCORE', KEYS[5], unpack(chunk))
  local leases = redis.call('HMGET', KEYS[4], unpack(chunk))
  for i, id in ipairs(chunk) do
    at = at + 1
    local record = records[i]
    if record then
      local kind, score = 'due', due[i]
      if not score then kind, score = 'dead', dead[i] end
      if score then
        bytes = bytes + #record
        local lease = leases[i] or ''
        local why = kind == 'dead' and redis.call('HGET', KEYS[6], id) or ''
        local parcel = ARGV[3] .. '|' .. ARGV[4] .. '|' .. cmsgpack.pack({kind, score, record, lease, why})
        answer[#answer + 1], answer[#answer + 2] = id, parcel
        moved[#moved + 1], moved[#moved + 2] = id, parcel
        taken[#taken + 1] = id
      end
    end
  end
end
if #taken > 0 then
  begin() -- a user who may not remove must not add either: the task would be in two places
  redis.call('HSET', KEYS[7], unpack(moved))
  redis.call('HDEL', KEYS[2], unpack(taken))
  redis.call('ZREM', KEYS[3], unpack(taken))
  redis.call('ZREM', KEYS[5], unpack(taken))
  redis.call('HDEL', KEYS[4], unpack(taken))
  redis.call('HDEL', KEYS[6], unpack(taken))
  redis.pcall('HINCRBY', KEYS[1], 'moved', #taken)
end
return answer
