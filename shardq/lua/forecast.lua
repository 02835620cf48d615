-- forecast: counts the scheduled tasks of a shard that are due already, and those that fall due in each step of a time
-- to come. What is held waits for its key, and is not counted.
-- USES: epoch, guard, topic
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 instant in ms at which the first step begins, or '' for the last multiple of a step that has begun
-- ARGV 4 length of a step in ms
-- ARGV 5 how many steps, up to 100
-- RETURNS {'ok', now_us, instant at which the first step begins, due already, falling due after the last step, {falling due in the first step, …}} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N) for n steps
local step = tonumber(ARGV[4])
local first = tonumber(ARGV[3]) or math.floor(now_ms / step) * step
local overdue = redis.call('ZCOUNT', KEYS[2], '-inf', string.format('%.0f', now_ms))
local keyed = redis.call('ZCOUNT', KEYS[2], far(0), '+inf') > 0
local held = keyed and redis.call('ZCOUNT', KEYS[2], far(0), far(now_ms)) or 0
local counts, before = {}, overdue
for i = 1, tonumber(ARGV[5]) do
  local past = redis.call('ZCOUNT', KEYS[2], '-inf', string.format('(%.0f', first + i * step))
  if keyed then past = past + math.max(0, redis.call('ZCOUNT', KEYS[2], far(0), '(' .. far(first + i * step)) - held) end
  counts[i] = math.max(0, past - before)
  before = math.max(before, past)
end
return {
  'ok', string.format('%.0f', now_us), string.format('%.0f', first), overdue, redis.call('ZCARD', KEYS[2]) - held - before, counts,
}
