-- stock: returns a page of the ids whose records are in this shard. A record stays in its place through all changes of
-- state, so no id is missed; a scan of due, ready and leased could miss a task that changes its state meanwhile.
-- USES: epoch, guard, place
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 where to go on: the answer's, '0' to begin
-- ARGV 4 about how many
-- RETURNS {'ok', where to go on, '0' at the end, bytes of records read, {id, …}} | {'stale', epoch} | {'behind', epoch} | {'missing'}
-- ATOMIC one page; what is here from the first to the last is met at least once
-- COST O(n), and before Redis 7.4 all the bytes of their records
local page = redis.pcall('HSCAN', KEYS[2], scan_from(ARGV[3]), 'COUNT', ARGV[4], 'NOVALUES')
if not page.err then return {'ok', scan_on(page[1]), 0, page[2]} end
page = redis.call('HSCAN', KEYS[2], scan_from(ARGV[3]), 'COUNT', ARGV[4])
local ids, bytes = {}, 0
for i = 1, #page[2], 2 do
  ids[#ids + 1] = page[2][i]
  bytes = bytes + #page[2][i + 1]
end
return {'ok', scan_on(page[1]), bytes, ids}
