-- fault_of(id, task, due, leased, dead, ghost, ready, keys, longest): what keeps a task from ever being given, by these keys. The
-- ready list is not searched where it is longer than `longest`. The members of `keys` are those of lane.lua, whose functions
-- write: who only looks has none of them. Uses count, state, topic.
-- RETURNS lost: it has a record, and is in no list or set | empty: it is in a set without a record | unlaned: it is scheduled, and
--         its lane does not know it; nil where all is well; and the entries of the list among which it was looked for
local function fault_of(id, task, due, leased, dead, ghost, ready, keys, longest)
  local state, at = state_of(id, task, due, leased, dead)
  if state == 'gone' then return nil, 0 end
  if state == 'ready' then
    local length = redis.call('LLEN', ready)
    if length > longest then return nil, 0 end
    -- entries that are ghosts are passed over, and so no place
    local ghosts = math.max(0, count_of(redis.call('HGET', ghost, id)))
    return #redis.call('LPOS', ready, id, 'COUNT', ghosts + 1) <= ghosts and 'lost' or nil, length
  end
  if redis.call('HEXISTS', task, id) == 0 then return 'empty', 0 end
  local lane, unique = string.match(id, '^([^/]*/[^/]+/)(.*)$')
  if not (lane and keys) or state ~= 'scheduled' or tonumber(at) < FAR then return nil, 0 end
  if redis.call('ZSCORE', keys, lane .. string.format('%015.0f', at - FAR) .. '/' .. unique) then return nil, 0 end
  for _, entry in ipairs(redis.call('ZRANGEBYLEX', keys, '[' .. lane .. '-', '(' .. lane .. '0', 'LIMIT', 0, 5000)) do -- at the front
    if string.sub(entry, #lane + 17) == unique then return nil, 0 end
  end
  return 'unlaned', 0
end
