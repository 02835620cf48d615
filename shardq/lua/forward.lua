-- forward: takes tasks off a ready list and appends their payloads to somebody's list or stream in the same slot.
-- USES: epoch, guard, count, begin, rouse, record, topic, ghost, ghosts, die, lane, kept, changes
-- KEYS 1 meta HASH
-- KEYS 2 task HASH
-- KEYS 3 ready LIST
-- KEYS 4 ghost HASH
-- KEYS 5 lease HASH
-- KEYS 6 dead ZSET
-- KEYS 7 why HASH
-- KEYS 8 destination LIST or STREAM, not ours
-- KEYS 9 keys ZSET, where the engine has keys
-- KEYS 10 placed ZSET, where the engine has keys
-- KEYS 11 alarms ZSET, where the engine has keys
-- KEYS 12 rests ZSET, where the engine has keys
-- KEYS 13 holds HASH, where the engine has keys
-- KEYS 14 gates HASH, where the engine has keys
-- ARGV 1 epoch
-- ARGV 2 now_us or ''
-- ARGV 3 bell channel
-- ARGV 4 how many at most, up to 1,000
-- ARGV 5 right | left: the end of the list to push to; or stream: an entry for each, with the fields id, payload and, of a task
--         with headers, headers (a JSON object, without names that begin with shardq-)
-- ARGV 6 about how many entries the stream keeps, or '': the last entry trims it
-- RETURNS {'ok', forwarded, left in the ready list} | {'stale', epoch} | {'behind', epoch} | {'missing'}, or the destination's error with nothing changed
-- ATOMIC a payload is in the destination and its task gone, or neither
-- COST O(n), n the entries looked at: at most 1,000, and about 1 MiB of records. Ghosts and expired tasks are
--         dropped and do not count as forwarded: the entries behind them are looked at. If some are left, call
--         again at once
local wanted = tonumber(ARGV[4])
local haunted = redis.call('HLEN', KEYS[4]) > 0
local aged = redis.call('HLEN', KEYS[5]) > 0
redis.call('ZCARD', KEYS[6])
redis.call('HLEN', KEYS[7])
local topic, streamed = string.match(KEYS[3], '[^/]*$'), ARGV[5] == 'stream'
if streamed then redis.call('XLEN', KEYS[8]) else redis.call('LLEN', KEYS[8]) end
local payloads, headers, sent, odd, reasons, met = {}, {}, {}, {}, {}, {}
local ids, stale, at, taken, ended = {}, {}, 0, 0, false
local read, bytes = 0, 0
while wanted > 0 and taken < 1000 and bytes < 1048576 do
  if at == #ids then
    if ended then break end
    local count = math.min(1000 - taken, math.max(wanted, 2 * taken))
    ids, at = redis.call('LRANGE', KEYS[3], taken, taken + count - 1), 0
    ended = #ids < count
    if #ids == 0 then break end
    stale = haunted and marked(ids, redis.call('HMGET', KEYS[4], unpack(ids))) or {}
  end
  local chunk, last, most = {}, at, next_chunk(1048576 - bytes, read, bytes)
  while last < #ids and #chunk < most do
    last = last + 1
    if not stale[last] then chunk[#chunk + 1] = ids[last] end
  end
  local records = #chunk > 0 and redis.call('HMGET', KEYS[2], unpack(chunk))
  local i = 0
  while at < last and wanted > 0 and bytes < 1048576 do
    at, taken = at + 1, taken + 1
    local id, record = ids[at], nil
    if stale[at] then
      passed[id] = (passed[id] or 0) + 1
    else
      i, read = i + 1, read + 1
      record = records[i]
    end
    if record and not met[id] then
      met[id] = true
      bytes = bytes + #record
      local known, head, start = parts_of(record)
      local fine, text = true, nil
      local theirs = streamed and known and head and head.h
      if type(theirs) == 'table' then
        -- those named shardq-… are ours, and no other consumer's
        for name in pairs(theirs) do
          if string.lower(string.sub(name, 1, 7)) == 'shardq-' then theirs[name] = nil end
        end
        if next(theirs) == nil then theirs = nil end
      end
      if theirs then fine, text = pcall(cjson.encode, theirs) end
      if known and head and head.x and head.x <= now_ms then
        odd[#odd + 1], reasons[#reasons + 1] = id, 'expired'
      elseif known and fine and topic_of(id) == topic then
        wanted = wanted - 1
        payloads[#payloads + 1] = string.sub(record, start)
        sent[#sent + 1] = id
        headers[id] = text
      else
        odd[#odd + 1], reasons[#reasons + 1] = id, 'format'
      end
    end
  end
end
if taken == 0 then return {'ok', 0, 0} end
-- removals that remove nothing: a user who may not remove must not hand over either, and a server without memory drains
begin()
redis.call('LTRIM', KEYS[3], 0, -1)
-- what is dropped is noted in dead and ghost before it leaves the list: if that is refused, the next call meets it again
for i, id in ipairs(odd) do
  die(id, reasons[i])
end
local dropped = forget_passed(KEYS[4])
if #payloads > 0 then
  -- somebody's list: it may refuse
  local refused
  if streamed then
    local added = {}
    for i, id in ipairs(sent) do
      local fields = {'*', 'id', id, 'payload', payloads[i]}
      if headers[id] then fields[6], fields[7] = 'headers', headers[id] end
      local entry
      if ARGV[6] ~= '' and i == #sent then
        -- only the last one trims: all or none
        entry = redis.pcall('XADD', KEYS[8], 'MAXLEN', '~', ARGV[6], unpack(fields))
      else
        entry = redis.pcall('XADD', KEYS[8], unpack(fields))
      end
      if type(entry) == 'table' then
        -- its ids may be used up by an entry of somebody's: all or none
        if #added > 0 then redis.call('XDEL', KEYS[8], unpack(added)) end
        refused = entry
        break
      end
      added[i] = entry
    end
  elseif ARGV[5] == 'left' then
    refused = redis.pcall('LPUSH', KEYS[8], unpack(payloads))
  else
    refused = redis.pcall('RPUSH', KEYS[8], unpack(payloads))
  end
  if type(refused) == 'table' then
    for id, count in pairs(passed) do redis.call('HINCRBY', KEYS[4], id, count) end
    return refused
  end
end
redis.call('LTRIM', KEYS[3], taken, -1)
for of, number in pairs(dropped) do haunt(of, -number) end
if LANES and lanes_from(9) then
  local lanes = {}
  frees(lanes, odd)
  takes_turns(lanes, sent)
  frees(lanes, sent)
  local first = rings(lanes)
  if first < math.huge then rouse(first) end
end
if #sent > 0 then
  redis.call('HDEL', KEYS[2], unpack(sent))
  if aged then redis.call('HDEL', KEYS[5], unpack(sent)) end
  redis.pcall('HINCRBY', KEYS[1], 'forwarded', #sent)
end
return {'ok', #sent, redis.call('LLEN', KEYS[3])}
