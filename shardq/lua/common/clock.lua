-- clock_us(given): tells the time. `given` is an explicit now in µs, or '' for the server's clock. The scripts on a shard
-- have it from guard, without a function: they run most often.
-- RETURNS now in µs
local function clock_us(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
