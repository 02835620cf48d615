-- A place is where a scan (HSCAN, ZSCAN) goes on: the server's cursor, '@' and the process that gave it. Another process
-- of the server, after a failover or where the slot was moved to, has the members in another order: the scan begins anew.
local RUN = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
-- scan_from(place): reads a place.
-- RETURNS the cursor to scan from; '0' where the place is another process's
local function scan_from(place)
  local cursor, run = string.match(place, '^(%d+)@?(%w*)$')
  return run == RUN and cursor or '0'
end
-- scan_on(cursor): writes the place behind a page.
-- RETURNS the place, '0' at the end
local function scan_on(cursor) return cursor == '0' and cursor or cursor .. '@' .. RUN end
