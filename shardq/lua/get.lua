-- get: reads tasks as they are now.
-- USES: epoch, guard, count, steady, state, record, topic
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 moved HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3.. id, up to 1,000
-- RETURNS {'ok', {state, instant or '', lease entry or '', reason or '', record} | {'gone'} | {'moving'} on its way to another shard, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n), at most about 1 MiB of records: the ids that have no answer are to be asked for again
local _, ahead_ms = steady(now_ms, meta[3], meta[4])
local answers, taken, bytes = {'ok'}, 0, 0
while taken < #ARGV - 2 and bytes < 1048576 do
  local chunk = {}
  for i = taken + 3, math.min(#ARGV, taken + 2 + next_chunk(1048576 - bytes, taken, bytes)) do chunk[#chunk + 1] = ARGV[i] end
  local records = redis.call('HMGET', KEYS[2], unpack(chunk))
  for i, id in ipairs(chunk) do
    if bytes >= 1048576 then break end
    taken = taken + 1
    local state, at = state_of(id, KEYS[2], KEYS[3], KEYS[4], KEYS[6])
    if state == 'scheduled' and tonumber(at) >= FAR then
      local due = tonumber(at) - FAR
      state, at = due <= now_ms and 'held' or state, string.format('%.0f', due)
    end
    if state == 'leased' then at = string.format('%.0f', at - ahead_ms) end
    if records[i] then
      bytes = bytes + #records[i]
      answers[#answers + 1] = {
        state, at or '', redis.call('HGET', KEYS[5], id) or '', redis.call('HGET', KEYS[7], id) or '', records[i],
      }
    else
      answers[#answers + 1] = {redis.call('HEXISTS', KEYS[8], id) == 1 and 'moving' or 'gone'}
    end
  end
end
return answers
