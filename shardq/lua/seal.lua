-- seal: writes one field, so that a WAIT or WAITAOF that follows on the connection covers every earlier write on this
-- node; and with the name of an outbox the number of its beat, the highest of which stays.
-- USES: epoch, guard, count, begin
-- KEYS 1 meta HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 name of an outbox, or ''
-- ARGV 4 number of its beat, or 0: it only asks
-- ARGV 5 the least number that is there if the server did not go back meanwhile; below it, nothing is noted
-- RETURNS {'ok'}, with a name {'ok', highest number before, now_ms} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(1)
begin() -- also out of memory: what is moved away frees some
redis.call('HSET', KEYS[1], 'sealed', string.format('%.0f', now_ms))
if ARGV[3] == '' then return {'ok'} end
local beat = 'beat/' .. ARGV[3]
local before = count_of(redis.call('HGET', KEYS[1], beat))
if tonumber(ARGV[4]) > before and before >= tonumber(ARGV[5]) then redis.call('HSET', KEYS[1], beat, ARGV[4]) end
return {'ok', before, now_ms}
