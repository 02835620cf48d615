-- roomy(size, packed, adding): whether to make a table of a small key before adding so many entries. Redis keeps a small
-- hash (up to 512 fields) or ZSET (up to 128) as one packed run that is searched from its start: 500 leases at once took
-- 4 us each to write and 2 to read, where a table takes a tenth. One entry of more than 64 bytes makes a table of it for
-- as long as the key exists; FILLER is that entry, added before the others and removed after. It can't be an id.
local FILLER = string.rep('\1', 65)
local function roomy(size, packed, adding) return size <= packed and size + adding > 16 end
