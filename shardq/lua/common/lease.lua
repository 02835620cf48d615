-- An entry of the lease hash: 'failures:lapses:limit:token'. limit is the task's own max_attempts, else what its last
-- claimer allows, or empty; token is empty while nobody holds it, and starts with '~' when the holder's lease was revoked
-- by a replacing push.
local function lease_of(entry)
  if not entry then return 0, 0, '', '' end
  local failures, lapses, limit, token = string.match(entry, '^(%d+):(%d+):(%d*):(.*)$')
  return tonumber(failures), tonumber(lapses), limit, token
end
local function lease_entry(failures, lapses, limit, token)
  return failures .. ':' .. lapses .. ':' .. limit .. ':' .. token
end
