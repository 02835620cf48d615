-- epoch_of(text): reads EPOCH or EPOCH:WORD:ENGINE, as the topology and the metas of shards have it.
-- RETURNS the epoch, 0 where another program has written something else; the engine's id, '' without one
local function epoch_of(text)
  local epoch, engine = string.match(text or '', '^([1-9]%d*)$'), ''
  if not epoch then epoch, engine = string.match(text or '', '^([1-9]%d*):[%w_]+:([%w_]+)$') end
  epoch = tonumber(epoch or 0)
  return epoch < 9007199254740992 and epoch or 0, engine or ''
end
