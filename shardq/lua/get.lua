-- get: reads tasks as they are now.
-- USES: epoch, guard, count, steady, record, topic
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
-- most shards have nothing in some of these, and are then not asked for each task
local none = {}
local no_leased, no_leases = redis.call('ZCARD', KEYS[4]) == 0, redis.call('HLEN', KEYS[5]) == 0
local no_dead, no_why = redis.call('ZCARD', KEYS[6]) == 0, redis.call('HLEN', KEYS[7]) == 0
local answers, taken, bytes = {'ok'}, 0, 0
while taken < #ARGV - 2 and bytes < 1048576 do
  local chunk = {}
  for i = taken + 3, math.min(#ARGV, taken + 2 + next_chunk(1048576 - bytes, taken, bytes)) do chunk[#chunk + 1] = ARGV[i] end
  local records, due = redis.call('HMGET', KEYS[2], unpack(chunk)), redis.call('ZMSCORE', KEYS[3], unpack(chunk))
  local leased = no_leased and none or redis.call('ZMSCORE', KEYS[4], unpack(chunk))
  local leases = no_leases and none or redis.call('HMGET', KEYS[5], unpack(chunk))
  local dead = no_dead and none or redis.call('ZMSCORE', KEYS[6], unpack(chunk))
  local whys = no_why and none or redis.call('HMGET', KEYS[7], unpack(chunk))
  for i, id in ipairs(chunk) do
    if bytes >= 1048576 then break end
    taken = taken + 1
    if records[i] then
      bytes = bytes + #records[i]
      local state, at = 'ready', ''
      if due[i] then
        state, at = 'scheduled', due[i]
        if tonumber(at) >= FAR then
          local due_ms = tonumber(at) - FAR
          state, at = due_ms <= now_ms and 'held' or state, string.format('%.0f', due_ms)
        end
      elseif leased[i] then
        state, at = 'leased', string.format('%.0f', leased[i] - ahead_ms)
      elseif dead[i] then
        state, at = 'dead', dead[i]
      end
      answers[#answers + 1] = {state, at, leases[i] or '', whys[i] or '', records[i]}
    else
      answers[#answers + 1] = {redis.call('HEXISTS', KEYS[8], id) == 1 and 'moving' or 'gone'}
    end
  end
end
return answers
