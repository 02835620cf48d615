-- history: writes parts of the history, if it is as its writer read it.
-- USES: epoch, another
-- KEYS 1 topology HASH
-- KEYS 2 history STRING
-- ARGV 1 epoch
-- ARGV 2 first four bytes as read, '' when there were none
-- ARGV 3 length of the whole in bytes
-- ARGV 4.. offset, bytes, … of each part
-- RETURNS {'ok', 1 when it was written, 0 when somebody else has written since, or where the topology is another engine's}
-- ATOMIC
-- COST O(bytes)
if another(redis.call('HGET', KEYS[1], 'epoch'), ARGV[1]) then return {'ok', 0} end
if redis.call('GETRANGE', KEYS[2], 0, 3) ~= ARGV[2] then return {'ok', 0} end
-- its last byte first: a string that grows takes twice the room
if ARGV[2] == '' then redis.call('SETRANGE', KEYS[2], ARGV[3] - 1, '\0') end
for i = 4, #ARGV, 2 do redis.call('SETRANGE', KEYS[2], ARGV[i], ARGV[i + 1]) end
return {'ok', 1}
