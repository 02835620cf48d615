-- history: writes parts of the history, if it is as its writer read it.
-- KEYS 1 history STRING
-- ARGV 1 first four bytes as read, '' when there were none
-- ARGV 2 length of the whole in bytes
-- ARGV 3.. offset, bytes, … of each part
-- RETURNS {'ok', 1 when it was written, 0 when somebody else has written since}
-- ATOMIC
-- COST O(bytes)
if redis.call('GETRANGE', KEYS[1], 0, 3) ~= ARGV[1] then return {'ok', 0} end
-- its last byte first: a string that grows takes twice the room
if ARGV[1] == '' then redis.call('SETRANGE', KEYS[1], ARGV[2] - 1, '\0') end
for i = 3, #ARGV, 2 do redis.call('SETRANGE', KEYS[1], ARGV[i], ARGV[i + 1]) end
return {'ok', 1}
