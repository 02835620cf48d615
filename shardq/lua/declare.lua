-- declare: creates the topology, or replaces it if it is still the one the caller saw; publishes the news.
-- USES: begin, epoch, settings
-- KEYS 1 topology HASH
-- KEYS 2 settings HASH
-- KEYS 3 edits ZSET
-- ARGV 1 epoch that must be the present one, 0 when there must be none
-- ARGV 2 news channel
-- ARGV 3 '1' when no topics have settings but those in ARGV; else '0'
-- ARGV 4 how many words of the topology follow
-- ARGV 5.. field, value, … of the new one, its epoch among them; then topic, its settings or '' for none, …, 1,000 at most
--         except with '1'
-- RETURNS {'ok', field, value, …} the new topology | {'differs', field, value, …} the present one, unchanged
-- ATOMIC
-- COST O(fields + topics log N)
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if (epoch or '0') ~= ARGV[1] then return {'differs', unpack(redis.call('HGETALL', KEYS[1]))} end
-- keys of other types end it here, before anything is written
redis.call('HLEN', KEYS[2])
redis.call('ZCARD', KEYS[3])
begin() -- also out of memory: resuming, or lifting a limit, is what makes room
local last = 4 + ARGV[4]
local number = 0
for i = 5, last, 2 do
  if ARGV[i] == 'epoch' then
    epoch = ARGV[i + 1]
    number = epoch_of(epoch)
  end
end
if ARGV[3] == '1' then redis.call('DEL', KEYS[2], KEYS[3]) end
local topics = {}
for i = last + 1, #ARGV do topics[#topics + 1] = ARGV[i] end
keep_settings(KEYS[2], topics)
-- who knows a topology that is noted here learns what changed since; who does not, everything
local noted = {number, ':' .. epoch}
for i = 1, #topics, 2 do
  noted[#noted + 1] = number
  noted[#noted + 1] = topics[i]
  if #noted == 1000 then
    redis.call('ZADD', KEYS[3], unpack(noted))
    noted = {number, ':' .. epoch}
  end
end
redis.call('ZADD', KEYS[3], unpack(noted))
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', number - 1000)
redis.call('HSET', KEYS[1], unpack(ARGV, 5, last))
redis.pcall('SPUBLISH', ARGV[2], 'topology')
return {'ok', unpack(redis.call('HGETALL', KEYS[1]))}
