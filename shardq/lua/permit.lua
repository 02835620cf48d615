-- permit: grants a claimer tasks of a limited topic, within what the whole fleet may take.
-- USES: epoch, clock, control, count, steady, draw
-- KEYS 1 topology HASH
-- KEYS 2 bucket HASH
-- KEYS 3 permits ZSET
-- KEYS 4 waiting ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 topic
-- ARGV 4 how many are wanted, up to 1,000
-- ARGV 5 rate: tasks a second, or '' without that limit
-- ARGV 6 concurrency: tasks at once, or '' without that limit
-- ARGV 7 ms after which a permit that is not given back lapses: the length of the lease, and 2,000 more
-- ARGV 8 token, never used before; the permits' names are '#' and a number from 1 behind it
-- ARGV 9 prefix of the wake channels of the control slot; a process's name follows
-- ARGV 10 the caller's process, to be woken when a permit goes back, if there is none now; or '' when it does not wait
-- ARGV 11 '1' when others of that process wait, too: it is to be woken also if there are some; else '0'
-- RETURNS {'ok', granted, ms after which to ask again when none was} | {'stale', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N)
local granted, free, full, again_ms = tonumber(ARGV[4]), math.huge, false, 0
local bucket = redis.call('HMGET', KEYS[2], 'tokens', 'at_us', 'clock', 'ahead', 'turn_ms')
local steady_ms = steady(now_ms, bucket[3], bucket[4])
-- a removal comes first: behind it a server without memory takes the rest, so that a limited topic drains too
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', steady_ms))
if ARGV[6] ~= '' then
  note_steady(KEYS[2], now_ms, bucket[3], bucket[4])
  free = math.max(0, tonumber(ARGV[6]) - redis.call('ZCARD', KEYS[3]))
  granted = math.min(granted, free)
  full = free == 0
  if full then
    -- one that goes back rings; one that lapses rings nobody, and who does not wait hears nothing
    local head = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    again_ms = math.min(ARGV[10] == '' and 50 or 5000, head[2] and tonumber(head[2]) - steady_ms or 5000)
  end
end
if ARGV[5] ~= '' and not full then
  -- a tenth of a second's worth may come at once: more would double the rate of a second that follows a pause
  local rate = tonumber(ARGV[5])
  local most = math.max(1, rate / 10)
  -- what another program has written counts as a full bucket of now
  local tokens = math.max(0, tonumber(bucket[1] or most) or most)
  local since_us = now_us - (tonumber(bucket[2] or now_us) or now_us)
  local went_back = since_us < 0
  if went_back then since_us = 0 end
  tokens = math.min(most, tokens + since_us / 1000000 * rate)
  granted, free = math.min(granted, math.floor(tokens)), math.min(free, math.floor(tokens))
  if granted == 0 then
    local wait_ms = (1 - tokens) / rate * 1000
    if ARGV[10] ~= '' then
      -- those that wait ask one after the other, as tokens come, and not all for the first; at most a second later, as
      -- some may be gone before their turn
      local first = now_us / 1000 + wait_ms
      local turn = math.max(first, math.min((tonumber(bucket[5] or 0) or 0) + 1000 / rate, first + 1000))
      redis.call('HSET', KEYS[2], 'turn_ms', string.format('%.3f', turn))
      wait_ms = wait_ms + turn - first
    end
    again_ms = math.min(3600000, math.ceil(wait_ms))
  end
  -- only what is granted is noted: of small rates, the share of a moment between two calls would be rounded to nothing
  if granted > 0 or went_back then
    redis.call('HSET', KEYS[2], 'tokens', string.format('%.6f', tokens - granted), 'at_us', string.format('%.0f', now_us))
  end
end
if ARGV[6] ~= '' then
  if granted > 0 then
    local names, lapse_ms = {}, steady_ms + tonumber(ARGV[7])
    for i = 1, granted do
      names[i * 2 - 1], names[i * 2] = lapse_ms, ARGV[8] .. '#' .. i
    end
    redis.call('ZADD', KEYS[3], unpack(names))
  end
  if ARGV[10] ~= '' and (ARGV[11] == '1' or full) then
    if redis.pcall('ZADD', KEYS[4], 'NX', steady_ms, ARGV[10]) == 1 then
      -- as in claim: a process that did not come back for an hour is gone
      redis.pcall('ZREMRANGEBYSCORE', KEYS[4], '-inf', steady_ms - 3600000)
    end
  end
  -- more than this caller takes: the next one is woken, and will wake the next
  if granted > 0 and free > granted then draw(ARGV[3], KEYS[4], 1, ARGV[9]) end
end
return {'ok', granted, again_ms}
