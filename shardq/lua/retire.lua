-- retire: takes topics that nobody has used for long off the list of the shard's topics, and keeps the sum of their counters.
-- USES: epoch, guard, count, begin, draw
-- KEYS 1 meta HASH
-- KEYS 2 topics HASH
-- KEYS 3 looks HASH
-- KEYS 4.. ready LIST, one for each topic of ARGV 6..
-- KEYS 4+topics.. waiting ZSET, likewise
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 ms for which nothing of it was pushed or dispatched
-- ARGV 4 '0' only looks; '1' for topics that had no task in a look at every record since they were answered
-- ARGV 5 prefix of the wake channels of this shard; a process's name follows
-- ARGV 6.. topics
-- RETURNS {'ok', topic, … of those that were idle for so long, or with '1' are retired} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC each topic. What is pushed takes its mark off: so one that is still marked had no push since it was answered
-- COST O(topics)
local idle = {'ok'}
local topics = #ARGV - 5
-- a key of the wrong type fails here, before anything is written
redis.call('HLEN', KEYS[3])
local lengths = {}
for i = 1, topics do lengths[i] = redis.call('LLEN', KEYS[3 + i]) end
for i = 1, topics do
  local topic = ARGV[5 + i]
  local field = 'idle/' .. topic
  local stored, mark = redis.call('HGET', KEYS[2], topic), redis.call('HGET', KEYS[1], field)
  local count, waiting = count_of(stored), KEYS[3 + topics + i]
  local before, since = string.match(mark or '', '^(-?%d+):(%d+)$')
  if not stored or lengths[i] > 0 then
    if mark then redis.call('HDEL', KEYS[1], field) end
  elseif tonumber(before) ~= count or tonumber(since) > now_ms then
    redis.pcall('HSET', KEYS[1], field, string.format('%.0f:%.0f', count, now_ms))
  elseif now_ms - since >= tonumber(ARGV[3]) then
    if redis.call('EXISTS', waiting) == 1 then
      -- of a process that waits: it comes back; or of one that is gone: its name goes
      draw(topic, waiting, 8, ARGV[5])
      redis.pcall('HSET', KEYS[1], field, string.format('%.0f:%.0f', count, now_ms))
    else
      if ARGV[4] == '1' then
        local known = redis.call('HMGET', KEYS[1], 'dispatched', 'died', 'died/' .. topic)
        begin()
        redis.call('HSET', KEYS[1], 'dispatched', string.format('%.0f', count_of(known[1]) + count))
        redis.call('HSET', KEYS[1], 'died', string.format('%.0f', count_of(known[2]) + count_of(known[3])))
        redis.call('HDEL', KEYS[1], field, 'died/' .. topic, 'ghosts/' .. topic, 'began/' .. topic)
        redis.call('HDEL', KEYS[3], topic)
        redis.call('HDEL', KEYS[2], topic)
      end
      idle[#idle + 1] = topic
    end
  end
end
return idle
