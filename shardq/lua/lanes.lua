-- lanes: returns a page of the lanes of which something waits, is ready or is leased, in the order of their bytes, and sets their
-- alarms: a clock may have gone back. Takes away the places of ids that have none by right.
-- USES: epoch, guard, begin, rouse, topic, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 keys ZSET, where the engine has keys
-- KEYS 5 placed ZSET, where the engine has keys
-- KEYS 6 alarms ZSET, where the engine has keys
-- KEYS 7 rests ZSET, where the engine has keys
-- KEYS 8 holds HASH, where the engine has keys
-- KEYS 9 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 bytes from which on the page begins, or ''
-- ARGV 5 how many at most
-- RETURNS {'ok', places that were taken away, {lane, …}, how many tasks wait that their lanes do not know} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC one page
-- COST O(n log N)
local most, from, found, lanes, mended = tonumber(ARGV[5]), ARGV[4] == '' and '["' or '[' .. ARGV[4], {}, {}, 0
if not (LANES and lanes_from(4, 3)) then return {'ok', 0, {}, 0} end
begin()
while #found < most do
  local lane
  for i = 0, 1 do
    local first = redis.call('ZRANGEBYLEX', KEYS[LANES + i], from, '+', 'LIMIT', 0, 1)[1]
    local of = first and lane_of(first)
    if first and not of then redis.call('ZREM', KEYS[LANES + i], first) end -- another program's
    if of and (not lane or follows(lane, of)) then lane = of end
  end
  if not lane then break end
  local low, high = bounds_of(lane)
  for _, id in ipairs(redis.call('ZRANGEBYLEX', KEYS[LANES + 1], low, high, 'LIMIT', 0, 100)) do
    local waits = redis.call('ZSCORE', KEYS[3], id) or redis.call('HEXISTS', KEYS[2], id) == 0
    if waits and not redis.call('ZSCORE', KEYS[LANES + 2], id) then
      frees(lanes, {id})
      mended = mended + 1
    end
  end
  note(lanes, lane)
  from, found[#found + 1] = '[' .. string.sub(lane, 1, -2) .. '0', lane
end
-- what is over: a turn counts as long as the longest time between two
local settings, longest = redis.call('HGETALL', KEYS[1]), 0
for i = 1, #settings, 2 do
  if string.sub(settings[i], 1, 5) == 'keys/' then
    longest = math.max(longest, tonumber(string.match(settings[i + 1], '^%d+:([%d.]+):') or 0))
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[LANES + 3], '(0', string.format('%.3f', now_ms - longest - LATE_MS))
local first = rings(lanes)
if first < math.huge then rouse(first) end
local lacking = redis.call('ZCOUNT', KEYS[3], FAR, '+inf') - redis.call('ZCARD', KEYS[LANES])
return {'ok', mended, found, math.max(0, lacking)}
