-- What servers give to scripts, over a model in Python: redis.call and redis.pcall, cmsgpack, and of cjson encode.
-- Called with Python's functions; returns the functions that Python calls. `reached` is told the branches of scripts
-- that have marks, or nil.
local commands, floats, reached = ...

-- ---- redis

-- Each command answers what Lua gets of it. nil, and a text, is a refusal.
local shapes = {
  one = function(ask) return ask end,
  status = function(ask)
    return function(...)
      local refused, text = ask(...)
      if refused == nil then return nil, text end
      return {ok = 'OK'}
    end
  end,
  -- a list that is too long for Lua's stack comes as a table, third
  list = function(ask)
    return function(...)
      local items = {ask(...)}
      if items[1] ~= nil then return items end
      if items[2] ~= nil then return nil, items[2] end
      return items[3] or {}
    end
  end,
}
-- a cursor, and a list
function shapes.page(ask)
  local list = shapes.list(ask)
  return function(...)
    local items, text = list(...)
    if not items then return nil, text end
    return {table.remove(items, 1), items}
  end
end

local known = {}
for name, command in pairs(commands) do known[name] = shapes[command[1]](command[2]) end

setmetatable(known, {__index = function(_, name)
  return function()
    if name == nil then return nil, 'ERR Please specify at least one argument for this call' end
    return nil, 'ERR Unknown command called from script'
  end
end})

local redis = {}
function redis.call(name, ...)
  local answer, refused = known[name](...)
  if answer == nil then error({err = refused}) end
  return answer
end
function redis.pcall(name, ...)
  local answer, refused = known[name](...)
  if answer == nil then return {err = refused, ignore_error_stats_update = true} end
  return answer
end

-- ---- cmsgpack

local function big_endian(text, from, bytes)
  local number = 0
  for i = from, from + bytes - 1 do number = number * 256 + string.byte(text, i) end
  return number
end
local function of_bytes(number, bytes)
  local text = ''
  for _ = 1, bytes do
    text = string.char(number % 256) .. text
    number = math.floor(number / 256)
  end
  return text
end
-- two halves, as a product of both would be rounded twice
local function of_64_bits(text, from, signed)
  local high, low = big_endian(text, from, 4), big_endian(text, from + 4, 4)
  if signed and high >= 2147483648 then high = high - 4294967296 end
  return high * 4294967296 + low
end
local function signed(number, bytes)
  local half = 2 ^ (bytes * 8 - 1)
  return number >= half and number - 2 * half or number
end

local unpack_one
local function need(text, at, bytes)
  if #text - at + 1 < bytes then error('Missing bytes in input.', 0) end
end
local function unpack_items(text, at, count)
  local items = {}
  for i = 1, count do items[i], at = unpack_one(text, at) end
  return items, at
end
local function unpack_fields(text, at, count)
  local fields = {}
  for _ = 1, count do
    local field, value
    field, at = unpack_one(text, at)
    value, at = unpack_one(text, at)
    if field == nil then error('table index is nil', 0) end
    if field ~= field then error('table index is NaN', 0) end
    fields[field] = value
  end
  return fields, at
end
local function unpack_text(text, at, length)
  need(text, at, length)
  return string.sub(text, at, at + length - 1), at + length
end
local sized = {
  [217] = {1, unpack_text}, [218] = {2, unpack_text}, [219] = {4, unpack_text},
  [220] = {2, unpack_items}, [221] = {4, unpack_items},
  [222] = {2, unpack_fields}, [223] = {4, unpack_fields},
}
local unsigned_of, signed_of = {[204] = 1, [205] = 2, [206] = 4}, {[208] = 1, [209] = 2, [210] = 4}
function unpack_one(text, at)
  need(text, at, 1)
  local byte = string.byte(text, at)
  at = at + 1
  if byte < 128 then return byte, at end
  if byte < 144 then return unpack_fields(text, at, byte - 128) end
  if byte < 160 then return unpack_items(text, at, byte - 144) end
  if byte < 192 then return unpack_text(text, at, byte - 160) end
  if byte >= 224 then return byte - 256, at end
  if byte == 192 then return nil, at end
  if byte == 194 or byte == 195 then return byte == 195, at end
  local bytes = unsigned_of[byte] or signed_of[byte]
  if bytes then
    need(text, at, bytes)
    local number = big_endian(text, at, bytes)
    return signed_of[byte] and signed(number, bytes) or number, at + bytes
  end
  if byte == 207 or byte == 211 then
    need(text, at, 8)
    return of_64_bits(text, at, byte == 211), at + 8
  end
  if byte == 202 or byte == 203 then
    bytes = byte == 202 and 4 or 8
    need(text, at, bytes)
    return floats.unpacked(string.sub(text, at, at + bytes - 1)), at + bytes
  end
  local form = sized[byte]
  if not form then error('Bad data format in input.', 0) end
  need(text, at, form[1])
  return form[2](text, at + form[1], big_endian(text, at, form[1]))
end

local function packed_integer(number)
  if number >= 0 then
    if number < 128 then return string.char(number) end
    if number < 256 then return '\204' .. of_bytes(number, 1) end
    if number < 65536 then return '\205' .. of_bytes(number, 2) end
    if number < 4294967296 then return '\206' .. of_bytes(number, 4) end
    return '\207' .. of_bytes(math.floor(number / 4294967296), 4) .. of_bytes(number % 4294967296, 4)
  end
  if number >= -32 then return string.char(256 + number) end
  if number >= -128 then return '\208' .. of_bytes(number + 256, 1) end
  if number >= -32768 then return '\209' .. of_bytes(number + 65536, 2) end
  if number >= -2147483648 then return '\210' .. of_bytes(number + 4294967296, 4) end
  return '\211' .. of_bytes(math.floor(number / 4294967296) + 4294967296, 4) .. of_bytes(number % 4294967296, 4)
end
local function head_of(count, small, small_bound, middle, middle_bytes, large)
  if count < small_bound then return string.char(small + count) end
  if middle_bytes == 1 and count < 256 then return middle .. of_bytes(count, 1) end
  if count < 65536 then return (middle_bytes == 1 and '\218' or middle) .. of_bytes(count, 2) end
  return large .. of_bytes(count, 4)
end
local NESTING = 16
local function pack_one(value, level)
  local kind = type(value)
  if kind == 'string' then return head_of(#value, 160, 32, '\217', 1, '\219') .. value end
  if kind == 'boolean' then return value and '\195' or '\194' end
  if kind == 'number' then
    if value == math.floor(value) and value >= -9223372036854775808 and value < 9223372036854775808 then
      return packed_integer(value)
    end
    return floats.packed(value)
  end
  if kind ~= 'table' or level == NESTING then return '\192' end
  local count, most, parts, array = 0, 0, {}, true
  for key in pairs(value) do
    count = count + 1
    local number = tonumber(key)
    if not number or number <= 0 or number ~= math.floor(number) then array = false elseif number > most then most = number end
  end
  if array and most == count then
    for i = 1, count do parts[i] = pack_one(value[i], level + 1) end
    return head_of(count, 144, 16, '\220', 2, '\221') .. table.concat(parts)
  end
  for key, each in pairs(value) do
    parts[#parts + 1] = pack_one(key, level + 1)
    parts[#parts + 1] = pack_one(each, level + 1)
  end
  return head_of(count, 128, 16, '\222', 2, '\223') .. table.concat(parts)
end

local cmsgpack = {}
function cmsgpack.pack(value) return pack_one(value, 0) end
function cmsgpack.unpack(text)
  local values, count, at = {}, 0, 1
  while at <= #text do
    count = count + 1
    values[count], at = unpack_one(text, at)
  end
  return unpack(values, 1, count)
end

-- ---- cjson

local escapes = {
  ['"'] = '\\"', ['\\'] = '\\\\', ['/'] = '\\/', ['\b'] = '\\b', ['\f'] = '\\f', ['\n'] = '\\n', ['\r'] = '\\r',
  ['\t'] = '\\t',
}
local function escaped(letter) return escapes[letter] or string.format('\\u%04x', string.byte(letter)) end
local function quoted(text)
  -- a pattern ends at a zero byte
  local parts = string.gsub(text, '[%c"\\/\127]', escaped)
  return '"' .. string.gsub(parts, '%z', '\\u0000') .. '"'
end
local encoded
local function array_length(value)
  local most, count = 0, 0
  for key in pairs(value) do
    if type(key) ~= 'number' or key < 1 or key ~= math.floor(key) then return -1 end
    most, count = math.max(most, key), count + 1
  end
  if most > count * 2 and most > 10 then error('Cannot serialise table: excessively sparse array', 0) end
  return most
end
local function encoded_table(value, depth)
  if depth > 1000 then error('Cannot serialise, excessive depth (' .. depth .. ')', 0) end
  local length, parts = array_length(value), {}
  if length > 0 then
    for i = 1, length do parts[i] = encoded(value[i], depth) end
    return '[' .. table.concat(parts, ',') .. ']'
  end
  for key, each in pairs(value) do
    local name
    if type(key) == 'number' then
      name = '"' .. encoded(key, depth) .. '"'
    elseif type(key) == 'string' then
      name = quoted(key)
    else
      error('Cannot serialise ' .. type(key) .. ': table key must be a number or string', 0)
    end
    parts[#parts + 1] = name .. ':' .. encoded(each, depth)
  end
  return '{' .. table.concat(parts, ',') .. '}'
end
function encoded(value, depth)
  local kind = type(value)
  if kind == 'string' then return quoted(value) end
  if kind == 'nil' then return 'null' end
  if kind == 'boolean' then return tostring(value) end
  if kind == 'table' then return encoded_table(value, depth + 1) end
  if value ~= value or value == math.huge or value == -math.huge then
    error('Cannot serialise number: must not be NaN or Inf', 0)
  end
  return string.format('%.14g', value)
end
local cjson = {encode = function(value) return encoded(value, 0) end}

-- ---- scripts

local world = {
  redis = redis, cmsgpack = cmsgpack, cjson = cjson, KEYS = {}, ARGV = {},
  string = string, table = table, math = math,
  ipairs = ipairs, pairs = pairs, next = next, pcall = pcall, select = select, tonumber = tonumber, tostring = tostring,
  type = type, unpack = unpack,
}
-- A mark writes or reads a field. The first time it is not there: so each is told once, and costs nothing after that.
if reached then
  world.reached = setmetatable({}, {
    __index = function(marks, number)
      marks[number] = true
      return true
    end,
    __newindex = function(marks, number)
      rawset(marks, number, true)
      reached(number)
    end,
  })
end
setmetatable(world, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})

local function loaded(text)
  local script, wrong = loadstring(text, '@user_script')
  if not script then error(wrong, 0) end
  return setfenv(script, world)
end

-- Where a script failed: the line in its own text. A tail call leaves none: then it is 0.
local function located(failure)
  local level, at = 2, debug.getinfo(2, 'Sl')
  while at and at.source ~= '@user_script' and at.what ~= 'tail' do
    level = level + 1
    at = debug.getinfo(level, 'Sl')
  end
  return {failure, at and math.max(0, at.currentline) or 0}
end

-- The forms in which Python gets an answer.
local REFUSED, STATUS, FLAT, OTHER, FAILED = 1, 2, 3, 4, 5
local function answered(answer)
  if type(answer) ~= 'table' then return OTHER, answer end
  if type(answer.err) == 'string' then return REFUSED, answer.err end
  if type(answer.ok) == 'string' then return STATUS, answer.ok end
  local count = 0
  while true do
    local item = answer[count + 1]
    if item == nil then break end
    if type(item) == 'table' or count == 4000 then return OTHER, answer end
    count = count + 1
  end
  return FLAT, unpack(answer, 1, count)
end

local function run(script, count, ...)
  local words = {...}
  world.KEYS, world.ARGV = {unpack(words, 1, count)}, {unpack(words, count + 1)}
  local fine, answer = xpcall(script, located)
  if fine then return answered(answer) end
  local failure, line = answer[1], answer[2]
  if type(failure) == 'table' then return FAILED, failure.err, line end
  return FAILED, 'ERR ' .. tostring(failure), line
end

-- Likewise with more words than Lua's stack takes.
local function run_tables(script, keys, words)
  world.KEYS, world.ARGV = keys, words
  local fine, answer = xpcall(script, located)
  if fine then return answered(answer) end
  local failure, line = answer[1], answer[2]
  if type(failure) == 'table' then return FAILED, failure.err, line end
  return FAILED, 'ERR ' .. tostring(failure), line
end

return loaded, run, run_tables
