-- A record is one byte (version * 16 + has_head * 8 + codec), with has_head the length of the head in two bytes and
-- the head in msgpack, and then the payload.
-- parts_of(record): reads the head, and finds the payload.
-- RETURNS true, the head or nil, the position where the payload begins; or false when it can't be read
local function parts_of(record)
  local first = string.byte(record)
  if not first or math.floor(first / 16) ~= 1 then return false end
  if first % 16 < 8 then return true, nil, 2 end
  local high, low = string.byte(record, 2, 3)
  if not low then return false end
  local length = high * 256 + low
  if #record < 3 + length then return false end
  if length == 8 then
    -- mostly the nonce alone, in four bytes: read without the unpacker, which takes longer than all the rest
    local map, name, letter, kind, n1, n2, n3, n4 = string.byte(record, 4, 11)
    if map == 129 and name == 161 and letter == 110 and kind == 206 then
      return true, { n = ((n1 * 256 + n2) * 256 + n3) * 256 + n4 }, 12
    end
  end
  local fine, head = pcall(cmsgpack.unpack, string.sub(record, 4, 3 + length))
  if not fine or type(head) ~= 'table' then return false end
  return true, head, 4 + length
end
-- next_chunk(left, read, bytes): how many records to read next so that they have about `left` bytes, after `read`
-- records with `bytes` bytes. Records have up to 1 MiB each, and a script must not hold the server for long. At most
-- twice as many as were read so far: the first few may have been the small ones.
-- RETURNS a number from 1 to 200
local function next_chunk(left, read, bytes)
  if read == 0 then return 4 end
  return math.max(1, math.min(200, read * 2, math.floor(left * read / (bytes + 1))))
end
