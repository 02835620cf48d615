-- epoch_of(text): reads EPOCH:WORD:ENGINE, as the topology and the metas of shards have it.
-- RETURNS the epoch and the engine's id; 0 and '' for the '0' of who knows none, and where another program has written
-- something else
local function epoch_of(text)
  local epoch, engine = string.match(text or '', '^([1-9]%d*):[%w_]+:([%w_]+)$')
  epoch = tonumber(epoch or 0)
  return epoch < 9007199254740992 and epoch or 0, engine or ''
end
