-- declare: creates the topology, or replaces it if it is still the one the caller saw; publishes the news.
-- USES: begin
-- KEYS 1 topology HASH
-- ARGV 1 epoch that must be the present one, 0 when there must be none
-- ARGV 2 news channel
-- ARGV 3.. field, value, … of the new one, its epoch among them
-- RETURNS {'ok', field, value, …} the new topology | {'differs', field, value, …} the present one, unchanged
-- ATOMIC
-- COST O(fields)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
local status = 'differs'
if (epoch or '0') == ARGV[1] then
  begin() -- also out of memory: resuming, or lifting a limit, is what makes room
  redis.call('HSET', KEYS[1], unpack(ARGV, 3))
  redis.pcall('SPUBLISH', ARGV[2], 'topology')
  status = 'ok'
end
return {status, unpack(redis.call('HGETALL', KEYS[1]))}
