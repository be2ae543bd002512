-- Reads a bucket and its ledger. KEYS: marker, bucket, ledger. ARGV: generation, base. Answers the
-- time, the record and the ledger; or 0 where the generation is another.

local values = values_of_keys()
if not remembers(values[1]) then return { 0 } end
local base = base_of(ARGV[2])
local us = clock()
local r = current(values[2], base, struct.unpack('>I7', ARGV[1]), ticks(base, us))
return { us, encode(r, base), values[3] or '' }
