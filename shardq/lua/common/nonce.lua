-- nonce_of(record): the nonce of the push that stored it, or nil. A resend knows its own first send by it.
local function nonce_of(record)
  local known, head = parts_of(record)
  return known and head and type(head.n) == 'number' and head.n or nil
end
-- mark_of(nonce): its trace in a dedup window, which outlives the record. A window ends at a whole ms, and is kept as
-- that less the mark: below half a ms, in steps that a score can tell apart until the year 2109.
local function mark_of(nonce) return nonce and (nonce % 1023 + 1) / 2048 or 0 end
