-- heartbeat: a dispatcher process says that it lives, and hears who else does and whether the topology changed.
-- USES: clock, epoch, another
-- KEYS 1 topology HASH
-- KEYS 2 members ZSET
-- KEYS 3 reports HASH
-- KEYS 4 unreached HASH
-- ARGV 1 process
-- ARGV 2 now_us or ''
-- ARGV 3 ms for which this process counts as alive
-- ARGV 4 ms for which any other does at most, from now on
-- ARGV 5 epoch the caller knows: nothing is written where the topology is another engine's
-- ARGV 6 stay | leave
-- ARGV 7 news channel
-- ARGV 8 report of this process, or '' for the one before
-- ARGV 9 shards that this process can't reach, as n,n,… or ''
-- RETURNS {'ok', now_us, {member, ms until which it counts as alive, …}, epoch of the topology or '' when there is none,
--         {field, value, … of the topology; empty when its epoch is ARGV 5}, 1 when this process was no member before, else 0,
--         {process, its ARGV 9, … as they were before this call; some may be no members any more}}
-- ATOMIC a member that is removed leaves no report, and no unreached shards
-- COST O(members)
local now_us = clock_us(ARGV[2])
local now_ms = math.floor(now_us / 1000)
local epoch = redis.call('HGET', KEYS[1], 'epoch') or ''
local topology = epoch ~= ARGV[5] and redis.call('HGETALL', KEYS[1]) or {}
if another(epoch, ARGV[5]) then return {'ok', string.format('%.0f', now_us), {}, epoch, topology, 0, {}} end
local joined, changed = 0
local unreached, before = redis.call('HGETALL', KEYS[4]), ''
for i = 1, #unreached, 2 do
  if unreached[i] == ARGV[1] then before = unreached[i + 1] end
end
if ARGV[6] == 'leave' then
  changed = redis.call('ZREM', KEYS[2], ARGV[1]) == 1
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('HDEL', KEYS[4], ARGV[1])
else
  local until_ms = string.format('%.0f', now_ms + ARGV[3])
  local added = redis.pcall('ZADD', KEYS[2], until_ms, ARGV[1])
  if type(added) == 'table' then
    -- a server without memory refuses it, and takes it behind a removal, which may remove nothing
    redis.call('ZREM', KEYS[2], '')
    added = redis.call('ZADD', KEYS[2], until_ms, ARGV[1])
  end
  joined, changed = added, added == 1
  if ARGV[8] ~= '' then redis.pcall('HSET', KEYS[3], ARGV[1], ARGV[8]) end
  if ARGV[9] == '' and before ~= '' then
    redis.call('HDEL', KEYS[4], ARGV[1])
    changed = true
  elseif ARGV[9] ~= before then
    changed = type(redis.pcall('HSET', KEYS[4], ARGV[1], ARGV[9])) == 'number' or changed
  end
end
local all = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
local living, longest_ms = {}, now_ms + ARGV[4]
for i = 1, #all, 2 do
  local member, until_ms = all[i], tonumber(all[i + 1])
  if until_ms > longest_ms and member ~= ARGV[1] then
    -- written by a process that was alone until now, before this server's clock went back, or by a master whose clock
    -- was ahead: when it dies, that would be noticed too late
    redis.call('ZADD', KEYS[2], string.format('%.0f', longest_ms), member)
    until_ms = longest_ms
  end
  if until_ms < now_ms then
    redis.call('ZREM', KEYS[2], member)
    redis.call('HDEL', KEYS[3], member)
    redis.call('HDEL', KEYS[4], member)
    changed = true
  else
    living[#living + 1] = member
    living[#living + 1] = string.format('%.0f', until_ms)
  end
end
if changed then redis.pcall('SPUBLISH', ARGV[7], 'members') end
return {'ok', string.format('%.0f', now_us), living, epoch, topology, joined, unreached}
