-- nonce_of(record): reads the nonce of the push that stored a record. A resend knows its own first send by it. Uses
-- record.
-- RETURNS the nonce, or nil
local function nonce_of(record)
  local known, head = parts_of(record)
  return known and head and type(head.n) == 'number' and head.n or nil
end
-- mark_of(nonce): the trace of a nonce in a dedup window, which outlives the record. A window ends at a whole ms; its
-- score is that end less the mark. A mark is at most half a ms, in steps that a score can tell apart until the year
-- 2109.
-- RETURNS the mark, 0 without a nonce
local function mark_of(nonce) return nonce and (nonce % 1023 + 1) / 2048 or 0 end
