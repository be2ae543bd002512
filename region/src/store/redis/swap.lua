-- Replaces a ledger that still has the expected version, and changes its bucket. KEYS: marker,
-- bucket, ledger. ARGV: generation, base, change, expected version, ledger, schedule. Answers the
-- time alone where the swap is done; the time, the record and the ledger where it conflicts; 0
-- where the generation is another. Of a ledger only the version in front is read.

local VERSION_LEN = 16

local values = values_of_keys()
if not remembers(values[1]) then return { 0 } end
local generation = struct.unpack('>I7', ARGV[1])
local base = base_of(ARGV[2])
local credit, debit, before, keep = struct.unpack('>i7i7I7I7', ARGV[3])
local schedule = pieces_of(ARGV[6], 3, struct.unpack('>I2', ARGV[6]))
local us = clock()
local now = ticks(base, us)
local r = current(values[2], base, generation, now)

local version = string.sub(values[3] or '', 1, VERSION_LEN)
local level = r.level + credit
local gone = debit > 0 and level < debit
if version ~= ARGV[4] or now >= before or gone
  or struct.unpack('>I8', ARGV[5]) ~= generation then
  return { us, encode(r, base), values[3] or '' }
end

r.offered, r.admitted = r.offered or 0, r.admitted or 0
r.pieces = schedule
r.kept = math.min(now + keep, NEVER)
for i = 1, #schedule, 3 do
  if schedule[i] < NEVER then r.kept = math.max(r.kept, schedule[i]) end
end
follow(r, base)
r.level = math.min(level - debit, capacity(r, base))
local ledger_ms = math.ceil((r.kept - now) * base.micros / 1000)
ledger_ms = math.min(math.max(ledger_ms, 1), KEEP_MAX_MS)
store(KEYS[2], r, base, now)
redis.call('SET', KEYS[3], ARGV[5], 'PX', number(ledger_ms))
return { us }
