-- state_of(id, task, due, leased, dead): the state of an id, by these four keys.
-- RETURNS scheduled, its due time | leased, its deadline | dead, its time of death | ready | gone
local function state_of(id, task, due, leased, dead)
  local at = redis.call('ZSCORE', due, id)
  if at then return 'scheduled', at end
  at = redis.call('ZSCORE', leased, id)
  if at then return 'leased', at end
  at = redis.call('ZSCORE', dead, id)
  if at then return 'dead', at end
  if redis.call('HEXISTS', task, id) == 1 then return 'ready' end
  return 'gone'
end
