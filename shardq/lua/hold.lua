-- hold: has a lane give nothing until an instant, or lets it go on.
-- USES: epoch, guard, begin, instant, rouse, topic, lane, kept, changes
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
-- ARGV 3 bell channel
-- ARGV 4 lane
-- ARGV 5 until when (ms; <= 0 a negated delay, > 0 an instant), '' to let it go on, or 'shut': it moves here, with its hold
-- ARGV 6 'new' where it moves to, in a change that goes on; 'old' where it leaves: a hold without a task of it would stay behind; else ''
-- RETURNS {'ok', 1 when this change has opened it here, else 0} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(log N)
if not (LANES and lanes_from(3, 2)) then return {'ok', 0} end
begin()
-- is_here(lane): tells if something of a lane is scheduled, ready or leased.
local function is_here(lane)
  local low, high = bounds_of(lane)
  return redis.call('ZLEXCOUNT', KEYS[LANES], low, high) + redis.call('ZLEXCOUNT', KEYS[LANES + 1], low, high) > 0
end
local lane, lanes = ARGV[4], {}
if ARGV[5] == 'shut' or ARGV[6] == 'new' then shut_lane(lane) end
if ARGV[5] ~= 'shut' then
  if ARGV[6] == 'old' and not is_here(lane) then
    -- what comes here still, as a dead task that is requeued, waits for its move
    hold(lane)
    say(lane, 'closed')
  elseif ARGV[5] == '' and gate_of(lane) == 'shut' then
    hold(lane, 0) -- the one that comes along is over, too
  elseif ARGV[5] == '' then
    hold(lane)
  else
    hold(lane, instant(ARGV[5]))
  end
end
note(lanes, lane)
local first = rings(lanes)
if first < math.huge then rouse(first) end
return {'ok', gate_of(lane) == 'open' and 1 or 0}
