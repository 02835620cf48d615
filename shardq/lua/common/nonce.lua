-- nonce_of(record): reads the nonce of the push that stored a record. A resend knows its own first send by it. Uses
-- record.
-- RETURNS the nonce, or nil
local function nonce_of(record)
  local known, head, start = parts_of(record)
  if known and not head and start == 12 then
    local n1, n2, n3, n4 = string.byte(record, 8, 11)
    return ((n1 * 256 + n2) * 256 + n3) * 256 + n4
  end
  return known and head and type(head.n) == 'number' and head.n or nil
end
-- mark_of(nonce): the trace of a nonce in a dedup window, which outlives the record. A window ends at a whole ms; its
-- score is that end less the mark. A mark is at most half a ms, in steps that a score can tell apart until the year
-- 2109.
-- RETURNS the mark, 0 without a nonce
local function mark_of(nonce) return nonce and (nonce % 1023 + 1) / 2048 or 0 end
