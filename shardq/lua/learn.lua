-- learn: reads the topology, and the settings of topics that changed since one that the caller knows. Changes nothing.
-- USES: epoch
-- KEYS 1 topology HASH
-- KEYS 2 settings HASH
-- KEYS 3 edits ZSET
-- ARGV 1 epoch that the caller knows, or '0'
-- RETURNS {'ok', {field, value, … of the topology; empty when there is none}, 1 when all settings follow, as the caller's
--         topology is none of the last 1,000 of this engine, else 0, {topic, its settings or '' for none, …}}
-- ATOMIC
-- COST O(fields + changed log N), or O(topics)
local fields = redis.call('HGETALL', KEYS[1])
if not redis.call('ZSCORE', KEYS[3], ':' .. ARGV[1]) then
  return {'ok', fields, 1, redis.call('HGETALL', KEYS[2])}
end
local changed = {}
for _, topic in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], string.format('(%.0f', epoch_of(ARGV[1])), '+inf')) do
  if string.sub(topic, 1, 1) ~= ':' then
    changed[#changed + 1] = topic
    changed[#changed + 1] = redis.call('HGET', KEYS[2], topic) or ''
  end
end
return {'ok', fields, 0, changed}
