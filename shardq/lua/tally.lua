-- tally: counts what is held, ready and leased of each key of a topic, and tells what the largest ones wait for. The keys are looked
-- at one by one, up to 300 of which something waits and as many of which something is out; behind these some more, at equal
-- distances: whoever has a 300th of what waits is met.
-- USES: epoch, guard, topic
-- KEYS 1 meta HASH
-- KEYS 2 due ZSET
-- KEYS 3 leased ZSET
-- KEYS 4 keys ZSET
-- KEYS 5 placed ZSET
-- KEYS 6 alarms ZSET
-- KEYS 7 rests ZSET
-- KEYS 8 holds HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 topic
-- ARGV 4 how many keys to tell at most
-- RETURNS {'ok', now_ms, 1 if each key was looked at, else 0,
--         {lane, scheduled, held, ready, leased, due of the oldest held in ms or '', instant in ms of the retry that it waits for or '', likewise of the last turn of its rate, up to which it is on hold, and of its alarm, …}}, the largest first |
--         {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC one shard at one instant
-- COST O(log N), up to 1,200 times; and up to 500 of what is out for each key told: beyond these ready and leased are an estimate
local WALK, IDS = 300, 500
local topic, most, whole, seen, known = ARGV[3], tonumber(ARGV[4]), 1, {}, {}
local function behind(lane) return string.sub(lane, 1, -2) .. '0' end
local function digits(ms) return string.format('%015.0f', ms) end
local function look(id)
  local lane = string.match(id, '^[^/]*/[^/]+/')
  if lane and not known[lane] then
    known[lane] = true
    local held = redis.call('ZLEXCOUNT', KEYS[4], '[' .. lane, '(' .. lane .. digits(now_ms) .. '0')
    local out = redis.call('ZLEXCOUNT', KEYS[5], '[' .. lane, '(' .. behind(lane))
    seen[#seen + 1] = {lane, held, out}
  end
  return lane
end
for _, key in ipairs({KEYS[4], KEYS[5]}) do
  local from, to, first = '[' .. topic .. '/', '(' .. topic .. '0', nil
  for i = 0, WALK do
    first = redis.call('ZRANGEBYLEX', key, from, to, 'LIMIT', 0, 1)[1]
    if not first or i == WALK then break end
    local lane = look(first)
    from = lane and '[' .. behind(lane) or '(' .. first
  end
  if first then
    local rank, left = redis.call('ZRANK', key, first), redis.call('ZLEXCOUNT', key, from, to)
    whole = 0
    for i = 0, WALK - 1 do
      local at = rank + math.floor(i * left / WALK)
      look(redis.call('ZRANGE', key, at, at)[1] or '')
    end
  end
end
table.sort(seen, function(a, b)
  local more = b[2] + b[3] - a[2] - a[3]
  return more < 0 or more == 0 and a[1] < b[1]
end)
local told = {}
for i = 1, math.min(most, #seen) do
  local lane, held, out = unpack(seen[i])
  local low, high, first = '[' .. lane, '(' .. behind(lane), '[' .. lane .. digits(1)
  local waits = redis.call('ZLEXCOUNT', KEYS[4], low, high)
  local oldest = tonumber(string.sub(redis.call('ZRANGEBYLEX', KEYS[4], first, high, 'LIMIT', 0, 1)[1] or '', #lane + 1, #lane + 15))
  if not oldest or oldest > now_ms then oldest = math.huge end
  -- at the front: what it is due at is not in its name
  local retry = ''
  for _, entry in ipairs(redis.call('ZRANGEBYLEX', KEYS[4], low, '(' .. lane .. digits(1), 'LIMIT', 0, IDS)) do
    local due = (tonumber(redis.call('ZSCORE', KEYS[2], lane .. string.sub(entry, #lane + 17))) or FAR) - FAR
    if due > now_ms then
      held = held - 1
      if retry == '' then retry = string.format('%.0f', due) end
    else
      oldest = math.min(oldest, due)
    end
  end
  local ids, leased = redis.call('ZRANGEBYLEX', KEYS[5], low, high, 'LIMIT', 0, IDS), 0
  if #ids > 0 then
    -- what was replaced while it was leased waits already, or is gone, and its handler still runs
    local ends, revoked = redis.call('ZMSCORE', KEYS[3], unpack(ids)), redis.call('ZMSCORE', KEYS[6], unpack(ids))
    for j = 1, #ids do
      if ends[j] or revoked[j] then leased = leased + 1 end
    end
    leased = math.floor(leased * out / #ids + 0.5)
  end
  -- as held_of of lanes says it
  local ends, asked = string.match(redis.call('HGET', KEYS[8], lane) or '', '^(%d+):(%d+)$')
  local until_ms = ends and string.format('%.0f', math.min(tonumber(ends), now_ms + tonumber(asked))) or ''
  for _, word in ipairs({
    lane, waits - held, held, out - leased, leased, oldest < math.huge and string.format('%.0f', oldest) or '', retry,
    redis.call('ZSCORE', KEYS[7], lane) or '', until_ms, redis.call('ZSCORE', KEYS[6], lane) or '',
  }) do
    told[#told + 1] = word
  end
end
return {'ok', string.format('%.0f', now_ms), whole, told}
