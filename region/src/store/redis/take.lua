-- Checks keys of one shard, all or nothing. KEYS: marker, buckets. ARGV: generation, and for each
-- bucket its base, price, count, and 1 if that was offered before. Answers the time, and for each
-- bucket whether it affords and its record; or 0 where the generation is another.

local values = values_of_keys()
if not remembers(values[1]) then return { 0 } end
local generation = struct.unpack('>I7', ARGV[1])
local us = clock()
local keys, denials = {}, 0
for i = 2, #KEYS do
  local base = base_of(ARGV[i])
  local price, count, again = struct.unpack('>i7I6B', ARGV[i], BASE_LEN + 1)
  local now = ticks(base, us)
  local r = current(values[i], base, generation, now)
  local affords = price == 0 or r.level + base.debt >= price
  if not affords then denials = denials + 1 end
  local key = { r = r, base = base, price = price, now = now, affords = affords }
  key.admitted, key.offered = count, again == 0 and count or 0
  keys[i] = key
end

local admitted = denials == 0
local reply = { us }
for i = 2, #KEYS do
  local key = keys[i]
  local r = key.r
  local alone = denials == (key.affords and 0 or 1)
  local changed = false
  if key.price > 0 then
    changed = admitted or r.anchored
    if admitted then r.level = r.level - key.price end
    if r.offered and alone then
      changed = changed or key.offered > 0
      r.offered = (r.offered + key.offered) % SIX_BYTES
      if admitted then r.admitted = (r.admitted + key.admitted) % SIX_BYTES end
    end
  end
  if changed then
    store(KEYS[i], r, key.base, key.now)
  else
    repair(KEYS[i], values[i], key.base)
  end
  reply[i] = (key.affords and 'A' or 'd') .. encode(r, key.base)
end
return reply
