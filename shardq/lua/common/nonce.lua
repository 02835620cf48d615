-- nonce_of(record): reads the nonce of the push that stored a record. A resend knows its own first send by it. Uses
-- record.
-- RETURNS the nonce, or nil
local function nonce_of(record)
  local known, head, start = parts_of(record)
  if known and not head and start > 2 then
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
-- pushed_of(record): when a task was pushed. Of an id of the caller's own, which has a nonce, only the record may tell. Uses record.
-- RETURNS the seconds since 1970, '' if the id says it, or '-' if nothing does
local function pushed_of(record)
  local known, head, start = parts_of(record)
  if not known then return '-' end
  if head then return is_whole(head.p) and head.p and string.format('%.0f', head.p) or head.n and '-' or '' end
  if start ~= 19 then return start == 12 and '-' or '' end
  local p1, p2, p3, p4 = string.byte(record, 15, 18)
  return string.format('%.0f', ((p1 * 256 + p2) * 256 + p3) * 256 + p4)
end
