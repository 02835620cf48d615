-- A record is one byte (version * 16 + has_head * 8 + codec), with has_head the length of the head in two bytes and
-- the head in msgpack, and then the payload.
-- Most heads have eight bytes, with nothing but a nonce of four: read without the unpacker, which takes longer than all
-- the rest. Length and head begin like this.
local NONCE_ALONE = '\0\8\129\161n\206'
-- Where ends are kept it has the instant of the push, of four bytes, too, and seven bytes more.
local WITH_PUSH, PUSHED = '\0\15\130\161n\206', '\161p\206'
-- is_whole(value): tells if a number of a head is none, or one that it can be.
-- RETURNS true | false
local function is_whole(value)
  return value == nil or (type(value) == 'number' and value >= 0 and value < 9007199254740992 and value % 1 == 0)
end
-- parts_of(record): reads the head, and finds the payload. A nonce, alone or with the instant of the push, is no head
-- here: nonce_of reads the one, pushed_of the other.
-- RETURNS true, the head or nil, the position where the payload begins; or false when it can't be read
local function parts_of(record)
  local first = string.byte(record)
  if not first or first < 16 or first > 31 then return false end
  if first < 24 then return true, nil, 2 end
  if #record > 10 and string.sub(record, 2, 7) == NONCE_ALONE then return true, nil, 12 end
  if #record > 17 and string.sub(record, 2, 7) == WITH_PUSH and string.sub(record, 12, 14) == PUSHED then return true, nil, 19 end
  local high, low = string.byte(record, 2, 3)
  if not low then return false end
  local length = high * 256 + low
  if #record < 3 + length then return false end
  local fine, head = pcall(cmsgpack.unpack, string.sub(record, 4, 3 + length))
  if not fine or type(head) ~= 'table' then return false end
  if not is_whole(head.m) or not is_whole(head.n) or (head.x ~= nil and type(head.x) ~= 'number') then return false end
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
