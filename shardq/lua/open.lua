-- open: creates a shard's meta, or gives it a newer epoch. No other script does either.
-- USES: begin, epoch, settings
-- KEYS 1 meta HASH
-- KEYS 2 copy HASH
-- ARGV 1 epoch
-- ARGV 2 the topology of that epoch, as text
-- ARGV 3 '1' for a shard that comes into use: it forgets that it was polled and swept before, and who died; else '0'
-- ARGV 4 epoch in which the number of shards of that topology came in force
-- ARGV 5 numbers of shards by which it looks for tasks, as n,n,…: the present one last
-- ARGV 6 '1' to open the shard whatever it knew; else '0'
-- ARGV 7 a random word, kept where there was no meta: another one says that the shard had lost everything
-- ARGV 8 epoch since which these settings changed; '' when no other topics have any
-- ARGV 9.. topic, its settings or '' for none, …
-- RETURNS {'ok', 1 when there was no meta, else 0} | {'stale', epoch} |
--         {'owed', topology that the shard knows, as text} tasks may lie here by a number that is not in ARGV 5: nothing was
--         written | {'unrelated'} the shard's settings are of another epoch than ARGV 8: nothing was written
-- ATOMIC
-- COST O(topics + numbers)
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'topology', 'swept', 'since', 'numbers')
local known, theirs = epoch_of(meta[1])
if meta[1] ~= ARGV[1] then
  local mine, own = epoch_of(ARGV[1])
  if known >= mine or (theirs ~= own and theirs ~= '') then return {'stale', meta[1]} end
  if ARGV[6] ~= '1' and meta[5] then
    -- a shard that was swept has tasks by the number of then alone
    for number in string.gmatch(meta[3] == meta[4] and string.match(meta[5], '%d*$') or meta[5], '%d+') do
      if not string.find(',' .. ARGV[5] .. ',', ',' .. number .. ',', 1, true) then return {'owed', meta[2] or ''} end
    end
  end
  if ARGV[8] ~= '' and ARGV[8] ~= meta[1] then return {'unrelated'} end
end
redis.call('HLEN', KEYS[2]) -- a key of another type ends it here
begin() -- also out of memory: a shard that does not know its topology drains nothing
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'topology', ARGV[2], 'since', ARGV[4], 'numbers', ARGV[5])
if ARGV[8] == '' then redis.call('DEL', KEYS[2]) end
local topics = {}
for i = 9, #ARGV do topics[#topics + 1] = ARGV[i] end
keep_settings(KEYS[2], topics)
if not meta[1] then redis.call('HSET', KEYS[1], 'opened', ARGV[7]) end
if ARGV[3] == '1' then
  redis.call('HDEL', KEYS[1], 'wake_at', 'swept')
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 5) == 'died/' then redis.call('HDEL', KEYS[1], field) end
  end
end
return {'ok', meta[1] and 0 or 1}
