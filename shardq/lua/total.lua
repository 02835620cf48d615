-- total: adds up the counters of a page of a shard's topics, and counts its scheduled, held and ready tasks.
-- USES: epoch, guard, count, topic
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 dead ZSET
-- KEYS 6 topics HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 where to go on: the answer's, '0' to begin
-- ARGV 4 about how many topics
-- RETURNS {'ok', name, value, …} | {'stale', epoch} | {'behind', epoch} | {'missing'}. The names: cursor, where to go on, '0' at the
--         end; looked_at, topics of the page; topics, of the shard; dispatched, died, of the first page also what was counted of
--         retired topics; scheduled, held, ready
-- ATOMIC one page; all pages together where they have as many topics as the shard has at the last: else begin anew
-- COST O(n)
local page, is_first = redis.call('HSCAN', KEYS[6], ARGV[3], 'COUNT', ARGV[4]), ARGV[3] == '0'
local flat, dispatched, died = page[2], 0, 0
for i = 2, #flat, 2 do dispatched = dispatched + count_of(flat[i]) end
if is_first then
  local retired = redis.call('HMGET', KEYS[1], 'dispatched', 'died')
  dispatched, died = dispatched + count_of(retired[1]), count_of(retired[2])
end
for from = 1, #flat, 2000 do
  local fields = {}
  for i = from, math.min(from + 1998, #flat), 2 do fields[#fields + 1] = 'died/' .. flat[i] end
  for _, count in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do died = died + count_of(count) end
end
-- a record is in due, leased, dead, or ready
local scheduled = redis.call('ZCARD', KEYS[3])
local placed = scheduled + redis.call('ZCARD', KEYS[4]) + redis.call('ZCARD', KEYS[5])
local ready = math.max(0, redis.call('HLEN', KEYS[2]) - placed)
local topics = is_first and page[1] == '0' and #flat / 2 or redis.call('HLEN', KEYS[6])
local held = redis.call('ZCOUNT', KEYS[3], far(0), far(now_ms))
return {
  'ok', 'cursor', page[1], 'looked_at', #flat / 2, 'topics', topics, 'dispatched', dispatched, 'died', died,
  'scheduled', scheduled - held, 'held', held, 'ready', ready,
}
