-- forward: takes ids from a ready list and appends their payloads to somebody's list on this server.
-- USES: guard, begin, record
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 ready LIST
-- KEYS 4 ghost HASH
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 destination LIST, not ours
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 how many at most, up to 1,000
-- ARGV 4 right | left: the end of the destination to push to
-- RETURNS {'ok', forwarded, left in the ready list} | {'stale', epoch} | {'missing'}, or the destination's error with nothing changed
-- ATOMIC a payload is in the destination and its task gone, or neither
-- COST O(n), at most about 1 MiB of records
local ids = redis.call('LRANGE', KEYS[3], 0, tonumber(ARGV[3]) - 1)
if #ids == 0 then return {'ok', 0, 0} end
local haunted = redis.call('HLEN', KEYS[4]) > 0
local aged = redis.call('HLEN', KEYS[5]) > 0
redis.call('ZCARD', KEYS[6])
redis.call('HLEN', KEYS[7])
redis.call('LLEN', KEYS[8])
local payloads, sent, odd, reasons, ghosts, met = {}, {}, {}, {}, {}, {}
local taken, bytes = 0, 0
while taken < #ids and bytes < 1048576 do
  local chunk = {}
  for i = taken + 1, math.min(#ids, taken + next_chunk(1048576 - bytes, taken, bytes)) do chunk[#chunk + 1] = ids[i] end
  local records = redis.call('HMGET', KEYS[2], unpack(chunk))
  local counts = haunted and redis.call('HMGET', KEYS[4], unpack(chunk)) or {}
  for i, id in ipairs(chunk) do
    if bytes >= 1048576 then break end
    local record = records[i]
    taken = taken + 1
    if (ghosts[id] or 0) < tonumber(counts[i] or 0) then
      ghosts[id] = (ghosts[id] or 0) + 1
    elseif record and not met[id] then
      met[id] = true
      bytes = bytes + #record
      local known, head, start = parts_of(record)
      if known and head and head.x and tonumber(head.x) <= now_ms then
        odd[#odd + 1], reasons[#reasons + 1] = id, 'expired'
      elseif known then
        payloads[#payloads + 1] = string.sub(record, start)
        sent[#sent + 1] = id
      else
        odd[#odd + 1], reasons[#reasons + 1] = id, 'format'
      end
    end
  end
end
-- removals that remove nothing: a user who may not remove must not hand over either, and a server without memory drains
begin()
redis.call('LTRIM', KEYS[3], 0, -1)
-- what is not handed over is accounted for before it leaves the list: refused halfway, it is met again
for i, id in ipairs(odd) do
  redis.call('ZADD', KEYS[6], now_ms, id)
  redis.call('HSET', KEYS[7], id, reasons[i])
end
for id, count in pairs(ghosts) do
  if redis.call('HINCRBY', KEYS[4], id, -count) <= 0 then redis.call('HDEL', KEYS[4], id) end
end
if #payloads > 0 then
  -- somebody's list: it may refuse
  local refused
  if ARGV[4] == 'left' then
    refused = redis.pcall('LPUSH', KEYS[8], unpack(payloads))
  else
    refused = redis.pcall('RPUSH', KEYS[8], unpack(payloads))
  end
  if type(refused) == 'table' then
    for id, count in pairs(ghosts) do redis.call('HINCRBY', KEYS[4], id, count) end
    return refused
  end
end
redis.call('LTRIM', KEYS[3], taken, -1)
if #sent > 0 then
  redis.call('HDEL', KEYS[2], unpack(sent))
  if aged then redis.call('HDEL', KEYS[5], unpack(sent)) end
  redis.pcall('HINCRBY', KEYS[1], 'forwarded', #sent)
end
return {'ok', #sent, redis.call('LLEN', KEYS[3])}
