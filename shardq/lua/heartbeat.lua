-- heartbeat: a dispatcher process says that it lives, and hears what changed of the others that do, and of the topology.
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
-- ARGV 10 word of the members that the caller knows, or ''
-- RETURNS {'ok', name, value, …}: now_us; members, {member, …; empty when their word is ARGV 10}; epoch of the topology, or ''
--         when there is none; topology, {field, value, …; empty when its epoch is ARGV 5}; joined, 1 when this process was no
--         member before, else 0; unreached, {process, its ARGV 9, … and under '' the word; empty like the members}; word of the
--         members, which is another one after each change of who they are and of what they can't reach, '' when there is none;
--         others_ms, until which the first of the other members counts as alive, '' without others
-- ATOMIC a member that is removed leaves no report, and no unreached shards
-- COST O(log members + what has changed), O(members) for a caller that knows another word
local now_us = clock_us(ARGV[2])
local now_ms = math.floor(now_us / 1000)
local function told(members, epoch, topology, joined, unreached, word, others)
  return {
    'ok', 'now_us', string.format('%.0f', now_us), 'members', members, 'epoch', epoch, 'topology', topology,
    'joined', joined, 'unreached', unreached, 'word', word, 'others_ms', others,
  }
end
local epoch = redis.call('HGET', KEYS[1], 'epoch') or ''
local topology = epoch ~= ARGV[5] and redis.call('HGETALL', KEYS[1]) or {}
if another(epoch, ARGV[5]) then return told({}, epoch, topology, 0, {}, '', '') end
local joined, changed = 0
if ARGV[6] == 'leave' then
  changed = redis.call('ZREM', KEYS[2], ARGV[1]) == 1
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('HDEL', KEYS[4], ARGV[1])
else
  local before = redis.call('HGET', KEYS[4], ARGV[1]) or ''
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
local longest = string.format('%.0f', now_ms + ARGV[4])
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. longest, '+inf')) do
  -- written by a process that was alone until now, before this server's clock went back, or by a master whose clock
  -- was ahead: when it dies, that would be noticed too late
  if member ~= ARGV[1] then redis.call('ZADD', KEYS[2], longest, member) end
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('(%.0f', now_ms))) do
  redis.call('ZREM', KEYS[2], member)
  redis.call('HDEL', KEYS[3], member)
  redis.call('HDEL', KEYS[4], member)
  changed = true
end
local first = redis.call('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES')
local word = redis.call('HGET', KEYS[4], '') or ''
if changed then
  -- a word that is gone says nothing: who can't write the new one removes the old one
  word = first[1] and ARGV[1] .. '@' .. string.format('%.0f', now_us) or ''
  if word == '' or type(redis.pcall('HSET', KEYS[4], '', word)) == 'table' then
    redis.call('HDEL', KEYS[4], '')
    word = ''
  end
  redis.pcall('SPUBLISH', ARGV[7], 'members')
end
local members, unreached = {}, {}
if word == '' or word ~= ARGV[10] then
  members, unreached = redis.call('ZRANGE', KEYS[2], 0, -1), redis.call('HGETALL', KEYS[4])
end
local others = first[1] ~= ARGV[1] and first[2] or first[4] or ''
return told(members, epoch, topology, joined, unreached, word, others)
