-- check: finds ids whose record and place do not fit together. It looks at both at one instant, so what goes from state to
-- state meanwhile is not among them.
-- USES: epoch, guard, count, state, topic, fault
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 due ZSET
-- KEYS 4 leased ZSET
-- KEYS 5 dead ZSET
-- KEYS 6 ghost HASH
-- KEYS 7 ready LIST, that of the ids' topic
-- KEYS 8 keys ZSET
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3.. ids of one topic, at most 500
-- RETURNS {'ok', how many of the ids were looked at, from the first on, {id, lost | empty | unlaned, …} those that are wrong} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC
-- COST O(n log N), and a search of the ready list for each id that is ready: where these come to 200,000 entries, the ids behind
--         are to be asked for again. A list that is longer is not searched
local LONGEST = 200000
local wrong, searched, looked = {}, 0, 0
for i = 3, #ARGV do
  if searched >= LONGEST then break end
  local fault, entries = fault_of(ARGV[i], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], LONGEST)
  if fault then wrong[#wrong + 1], wrong[#wrong + 2] = ARGV[i], fault end
  searched, looked = searched + entries, looked + 1
end
return {'ok', looked, wrong}
