-- Redis keeps a small hash (up to 512 fields) or ZSET (up to 128 members) as one packed run, and searches it from its
-- start: 500 leases at once took 4 us each to write and 2 to read, a tenth of that in a table. One entry of more than
-- 64 bytes makes the key a table for as long as it exists. FILLER is that entry: the body adds it before the others
-- and removes it after them. It can't be an id.
local FILLER = string.rep('\1', 65)
-- roomy(size, packed, adding): decides if a key with `size` entries is made a table before `adding` more; `packed` is
-- the number up to which Redis packs it.
-- RETURNS true | false
local function roomy(size, packed, adding) return size <= packed and size + adding > 16 end
