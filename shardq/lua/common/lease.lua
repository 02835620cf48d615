-- An entry of the lease hash is 'failures:lapses:limit:token'. limit is the task's own max_attempts, else what its
-- last claimer allows, else empty. token is the holder's: empty while nobody holds the task, and with '~' in front
-- once a replacing push has revoked the lease.
-- lease_of(entry): reads an entry. A task without one was never leased; an entry of another form says nothing.
-- RETURNS failures, lapses, limit, token
local function lease_of(entry)
  local failures, lapses, limit, token = string.match(entry or '', '^(%d+):(%d+):(%d*):(.*)$')
  if not failures then return 0, 0, '', '' end
  return tonumber(failures), tonumber(lapses), limit, token
end
-- lease_entry(failures, lapses, limit, token): writes an entry.
-- RETURNS the entry
local function lease_entry(failures, lapses, limit, token)
  return failures .. ':' .. lapses .. ':' .. limit .. ':' .. token
end
