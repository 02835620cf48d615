-- close: ends the giving of lanes that belong elsewhere by the present number of shards. It lasts as long as that change.
-- USES: epoch, guard, begin, topic, lane, kept
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- KEYS 3 keys ZSET, where the engine has keys
-- KEYS 4 placed ZSET, where the engine has keys
-- KEYS 5 alarms ZSET, where the engine has keys
-- KEYS 6 rests ZSET, where the engine has keys
-- KEYS 7 holds HASH, where the engine has keys
-- KEYS 8 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3.. lane, at most 500
-- RETURNS {'ok', lane, how many of it are ready or leased, 1 when some wait, else 0, the
--         instants of its last turn, and before which it is held, in ms, or '', …} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N)
local answer = {'ok'}
if not (LANES and lanes_from(3, 2)) then return answer end
begin()
for i = 3, #ARGV do
  local lane = ARGV[i]
  local low, high = bounds_of(lane)
  if gate_of(lane) ~= 'closed' then say(lane, 'closed') end
  local n = #answer
  answer[n + 1], answer[n + 2] = lane, out_of(lane)
  answer[n + 3] = #redis.call('ZRANGEBYLEX', KEYS[LANES], low, high, 'LIMIT', 0, 1)
  answer[n + 4] = redis.call('ZSCORE', KEYS[LANES + 3], lane) or ''
  local held = held_of(lane)
  answer[n + 5] = held > 0 and string.format('%.0f', held) or ''
end
return answer
