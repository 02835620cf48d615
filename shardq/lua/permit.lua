-- permit: grants a claimer tasks of a limited topic, within what the whole fleet may take.
-- USES: clock, control, steady
-- KEYS 1 topology HASH
-- KEYS 2 bucket HASH
-- KEYS 3 permits ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 how many are wanted, up to 1,000
-- ARGV 4 rate: tasks a second, or '' without that limit
-- ARGV 5 concurrency: tasks at once, or '' without that limit
-- ARGV 6 length of the lease in ms: a permit that is not given back lapses with it
-- ARGV 7 prefix of the permits' names, never used before; a number from 1 follows
-- RETURNS {'ok', granted, ms after which to ask again when none was} | {'stale', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N)
local granted, again_ms = tonumber(ARGV[3]), 0
local bucket = redis.call('HMGET', KEYS[2], 'tokens', 'at_us', 'clock', 'ahead')
local steady_ms = steady(now_ms, bucket[3], bucket[4])
-- a removal comes first: behind it a server without memory takes the rest, so that a limited topic drains too
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', steady_ms))
if ARGV[5] ~= '' then
  note_steady(KEYS[2], now_ms, bucket[3], bucket[4])
  local free = tonumber(ARGV[5]) - redis.call('ZCARD', KEYS[3])
  if free <= 0 then
    -- one may be given back at any moment, which rings nobody: look soon
    local head = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    return {'ok', 0, math.max(1, math.min(50, head[2] and tonumber(head[2]) - steady_ms or 50))}
  end
  granted = math.min(granted, free)
end
if ARGV[4] ~= '' then
  -- a tenth of a second's worth may come at once: more would double the rate of a second that follows a pause
  local rate = tonumber(ARGV[4])
  local most = math.max(1, rate / 10)
  local tokens = tonumber(bucket[1] or most)
  local since_us = now_us - tonumber(bucket[2] or now_us)
  local went_back = since_us < 0
  if went_back then since_us = 0 end
  tokens = math.min(most, tokens + since_us / 1000000 * rate)
  granted = math.min(granted, math.floor(tokens))
  if granted == 0 then again_ms = math.ceil((1 - tokens) / rate * 1000) end
  -- only what is granted is noted: of small rates, the share of a moment between two calls would be rounded to nothing
  if granted > 0 or went_back then
    redis.call('HSET', KEYS[2], 'tokens', string.format('%.6f', tokens - granted), 'at_us', string.format('%.0f', now_us))
  end
end
if ARGV[5] ~= '' and granted > 0 then
  local names, deadline = {}, steady_ms + tonumber(ARGV[6])
  for i = 1, granted do
    names[i * 2 - 1], names[i * 2] = deadline, ARGV[7] .. i
  end
  redis.call('ZADD', KEYS[3], unpack(names))
end
return {'ok', granted, again_ms}
