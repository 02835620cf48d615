-- open: creates a shard's meta, or gives it a newer epoch. No other script creates one.
-- USES: begin, count
-- KEYS 1 meta HASH
-- ARGV 1 epoch
-- ARGV 2 the topology of that epoch, as text
-- ARGV 3 '1' for a shard that comes into use: it forgets that it was polled and swept before, and who died; else '0'
-- ARGV 4 a random word, kept where there was no meta: another one says that the shard had lost everything
-- RETURNS {'ok', 1 when there was no meta, else 0} | {'stale', epoch}
-- ATOMIC
-- COST O(topics)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if epoch and count_of(epoch) > tonumber(ARGV[1]) then return {'stale', epoch} end
begin() -- also out of memory: a shard that does not know its topology drains nothing
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'topology', ARGV[2])
if not epoch then redis.call('HSET', KEYS[1], 'opened', ARGV[4]) end
if ARGV[3] == '1' then
  redis.call('HDEL', KEYS[1], 'wake_at', 'swept')
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(field, 1, 5) == 'died/' then redis.call('HDEL', KEYS[1], field) end
  end
end
return {'ok', epoch and 0 or 1}
