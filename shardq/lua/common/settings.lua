-- keep_settings(key, words): writes settings of topics to a hash. The words: topic, its settings or '' for none, ….
-- RETURNS nothing
local function keep_settings(key, words)
  for i = 1, #words, 1000 do
    local set, gone = {}, {}
    for j = i, math.min(i + 999, #words), 2 do
      if words[j + 1] == '' then
        gone[#gone + 1] = words[j]
      else
        set[#set + 1] = words[j]
        set[#set + 1] = words[j + 1]
      end
    end
    if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
    if #set > 0 then redis.call('HSET', key, unpack(set)) end
  end
end
