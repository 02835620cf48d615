-- extend: moves the deadlines of leases; their tokens stay, so that an ack already on its way is still good.
-- USES: epoch, guard, count, steady, begin, rouse, lease
-- KEYS 1 meta HASH
-- KEYS 2 leased ZSET
-- KEYS 3 lease HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 length from now in ms
-- ARGV 5.. id, token, …, at most 1,000 pairs
-- RETURNS {'ok', position, lost | replaced, …} the positions (from 1) whose token is not the present one | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC every lease whose token is the present one
-- COST O(n log M)
local lease_ms = tonumber(ARGV[4])
local deadline = steady(now_ms, meta[3], meta[4]) + lease_ms
local answers, scores, position = {'ok'}, {}, 0
for i = 5, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  position = position + 1
  local _, _, _, present = lease_of(redis.call('HGET', KEYS[3], id))
  if token ~= '' and present == token then
    scores[#scores + 1], scores[#scores + 2] = deadline, id
  else
    answers[#answers + 1] = position
    answers[#answers + 1] = (token ~= '' and present == '~' .. token) and 'replaced' or 'lost'
  end
end
if #scores > 0 then
  begin() -- a longer lease needs no memory, and a server without any must not make two workers of one
  redis.call('ZADD', KEYS[2], 'XX', unpack(scores))
  if lease_ms <= STEP_MS then rouse(now_ms + lease_ms) end
end
return answers
