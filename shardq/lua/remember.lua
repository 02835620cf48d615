-- remember: stores dedup windows that move to this shard. Of two ends of a window the later one counts.
-- USES: epoch, guard, count, steady
-- KEYS 1 meta HASH
-- KEYS 2 seen ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 how far the steady clock of the shard they come from is before the server's there, in ms
-- ARGV 4.. end in ms by that clock, id, …, at most 1,000 pairs
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N)
local _, ahead_ms = steady(now_ms, meta[3], meta[4])
local ends = {}
for i = 4, #ARGV, 2 do
  ends[i - 3], ends[i - 2] = string.format('%.17g', tonumber(ARGV[i]) - tonumber(ARGV[3]) + ahead_ms), ARGV[i + 1]
end
if #ends > 0 then redis.call('ZADD', KEYS[2], 'GT', unpack(ends)) end
return {'ok'}
