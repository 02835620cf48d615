-- learn: reads the topology, and the settings of topics that changed since one that the caller knows. Changes nothing.
-- USES: epoch
-- KEYS 1 topology HASH
-- KEYS 2 settings HASH
-- KEYS 3 edits ZSET
-- ARGV 1 epoch that the caller knows, or '0'
-- RETURNS {'ok', {field, value, … of the topology; empty when there is none}, 0 when those that changed since follow, 1 when
--         all settings do, as the caller's topology is none of the last 1,000 of this engine, 2 when these are more than
--         1,000: scan them, and ask again with this epoch, {topic, its settings or '' for none, …}}
-- ATOMIC
-- COST O(fields + changed log N), or O(topics), 1,000 at most
local fields = redis.call('HGETALL', KEYS[1])
if not redis.call('ZSCORE', KEYS[3], ':' .. ARGV[1]) then
  if redis.call('HLEN', KEYS[2]) > 1000 then return {'ok', fields, 2, {}} end
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
