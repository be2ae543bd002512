-- Returns what a take consumed, up to each bucket's capacity; creates no key. KEYS: marker,
-- buckets. ARGV: generation, and for each bucket its base, price, count, and 1 if that was offered
-- before. Answers the time, or 0 where the generation is another.

local values = values_of_keys()
if not remembers(values[1]) then return { 0 } end
local generation = struct.unpack('>I7', ARGV[1])
local us = clock()
local bases = {}
for i = 2, #KEYS do
  bases[i] = base_of(ARGV[i])
end
for i = 2, #KEYS do
  local base = bases[i]
  local price, count, again = struct.unpack('>i7I6B', ARGV[i], BASE_LEN + 1)
  if values[i] and price > 0 then
    local now = ticks(base, us)
    local r = current(values[i], base, generation, now)
    r.level = math.min(r.level + price, capacity(r, base))
    if r.offered then
      if again == 0 then r.offered = (r.offered - count) % SIX_BYTES end
      r.admitted = (r.admitted - count) % SIX_BYTES
    end
    store(KEYS[i], r, base, now)
  end
end
return { us }
