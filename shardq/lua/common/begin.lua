-- begin(): removes a field that does not exist, and so changes nothing. A server without memory refuses a script's
-- first write unless it is a removal, and takes all writes after the first. A body that adds an id to its new place
-- before it removes it from the old one calls this before both: then no refusal leaves the id in neither.
-- RETURNS nothing
local function begin() redis.call('HDEL', KEYS[1], '') end
