-- open_lanes: begins to give lanes here: at every earlier shard of theirs they are closed, and nothing of them is left.
-- USES: epoch, guard, begin, rouse, topic, lane, kept, changes
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
-- ARGV 4.. for each lane, at most 500: it, and the instants of its last turn, and before which it is held, in ms, or ''
-- RETURNS {'ok'} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N)
local lanes = {}
if not (LANES and lanes_from(3, 2)) then return {'ok'} end
begin()
for i = 4, #ARGV, 3 do
  local lane = ARGV[i]
  note(lanes, lane)
  if gate_of(lane) ~= 'open' then
    if ARGV[i + 1] ~= '' then note_turn(lane, tonumber(ARGV[i + 1])) end
    -- a hold that was set or lifted here since it was shut is the newer one
    if ARGV[i + 2] ~= '' and not redis.call('HGET', KEYS[LANES + 4], lane) then hold(lane, tonumber(ARGV[i + 2])) end
    say(lane, 'open')
  end
end
local first = rings(lanes)
if first < math.huge then rouse(first) end
return {'ok'}
