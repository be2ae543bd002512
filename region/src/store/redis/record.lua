-- What every script begins with: records, read and settled as `record.rs` and `bucket.rs` do it.
--
-- All numbers are integers below 2^53, which a Lua number holds exactly. A product that is larger
-- is rounded, but then it exceeds every capacity, so that the minimum is right all the same.

local NEVER = 9007199254740991
local SIX_BYTES = 281474976710656
local FLAG = 32
local COLD_LEN, COUNTED_LEN, PIECE_LEN = 28, 49, 21
local KEEP_MAX_MS = 315360000000
local BASE_FORMAT = '>BI7I7i7i7I7I7i7I7'
local BASE_LEN = 57

local function number(n)
  return string.format('%.0f', n)
end

-- The only clock: the shard's own, in microseconds.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- The values of all keys. A server may reuse the room of an argument for a later one in the same
-- place, and a SET keeps its value's room for good: with a short name in that place, a record does
-- not get the room of a long one (16 bytes a key).
local function values_of_keys()
  local values = redis.call('MGET', KEYS[1], unpack(KEYS))
  table.remove(values, 1)
  return values
end

-- The shard remembers what the caller believes it does.
local function remembers(marker)
  return marker and string.sub(marker, 1, 7) == ARGV[1]
end

-- A key's base, from the beginning of its argument. Checks before anything is written that what
-- will be written can be kept.
local function base_of(packed)
  local base = {}
  base.milli, base.token, base.share, base.capacity, base.floor, base.wait, base.began, base.debt,
    base.keep_ms = struct.unpack(BASE_FORMAT, packed)
  if base.keep_ms < 1 or base.keep_ms > KEEP_MAX_MS then
    return error('a key must be kept for a time')
  end
  base.micros = base.milli == 1 and 1000 or 1
  base.skew_max = 5000000 / base.micros
  base.pieces = { base.wait, 0, base.floor, NEVER, base.share, base.capacity }
  return base
end

local function ticks(base, us)
  return (us - us % base.micros) / base.micros
end

-- `a / b`, rounded up.
local function div_ceil(a, b)
  local rest = math.fmod(a, b)
  return (a - rest) / b + (rest > 0 and 1 or 0)
end

-- The pieces of a schedule as one flat list: until, share, capacity, until, ..
local function pieces_of(packed, at, count)
  local pieces = {}
  for i = 1, count * 3, 3 do
    pieces[i], pieces[i + 1], pieces[i + 2], at = struct.unpack('>I7I7i7', packed, at)
  end
  return pieces
end

local function decode(bytes)
  if not bytes or #bytes < COLD_LEN then return nil end
  local r, head, at = {}, nil, nil
  head, at, r.generation, r.used, r.token = struct.unpack('>BI6I7i7i7', bytes)
  local flags = (head - head % FLAG) / FLAG
  if flags > 3 or r.used < 0 or r.token < 1 then return nil end
  r.at = head % FLAG * SIX_BYTES + at
  r.milli = flags >= 2 and 1 or 0
  r.kept, r.pieces = 0, {}
  if flags % 2 == 0 then return #bytes == COLD_LEN and r or nil end
  if #bytes < COUNTED_LEN then return nil end
  local count
  r.kept, r.offered, r.admitted, count, at =
    struct.unpack('>I7I6I6I2', bytes, COLD_LEN + 1)
  if #bytes ~= COUNTED_LEN + PIECE_LEN * count then return nil end
  r.pieces = pieces_of(bytes, at, count)
  return r
end

local function encode(r, base)
  local flags = (r.offered and 1 or 0) + 2 * base.milli
  local low = r.at % SIX_BYTES
  local used = math.max(r.capacity - r.level, 0)
  local cold = struct.pack('>BI6I7i7i7', flags * FLAG + (r.at - low) / SIX_BYTES, low, r.generation,
    used, base.token)
  if not r.offered then return cold end
  local parts = { cold, struct.pack('>I7I6I6I2', r.kept, r.offered, r.admitted, #r.pieces / 3) }
  for i = 1, #r.pieces, 3 do
    parts[#parts + 1] = struct.pack('>I7I7i7', r.pieces[i], r.pieces[i + 1], r.pieces[i + 2])
  end
  return table.concat(parts)
end

local function settle(r, now, base)
  if now < r.at then
    if r.at - now > base.skew_max then r.at = now end
    return
  end
  local pieces = #r.pieces > 0 and r.pieces or base.pieces
  local level, reached = r.level, r.at
  for i = 1, #pieces, 3 do
    local ends = pieces[i]
    if ends > r.at then
      local upto = math.min(now, ends)
      level = math.min(level + pieces[i + 1] * (upto - reached), pieces[i + 2])
      reached = upto
      if ends > now then break end
    end
  end
  r.level, r.at = level, now
end

-- Drops the pieces that are over and notes the capacity in force.
local function follow(r, base)
  local ahead = {}
  for i = 1, #r.pieces, 3 do
    if r.pieces[i] > r.at then
      local n = #ahead
      ahead[n + 1], ahead[n + 2], ahead[n + 3] = r.pieces[i], r.pieces[i + 1], r.pieces[i + 2]
    end
  end
  r.pieces = ahead
  r.capacity = ahead[3] or base.capacity
end

-- The most that the bucket holds at the tick to which it is settled.
local function capacity(r, base)
  if r.pieces[3] then return r.capacity end
  return r.at < base.wait and base.floor or base.capacity
end

-- Carries over what was used: exactly in the same arithmetic, else in whole tokens, rounded up.
local function adapt(r, base)
  if r.milli == base.milli and r.token == base.token then
    if r.pieces[3] then
      r.level = r.pieces[3] - r.used
    else
      r.level = math.max(base.capacity - r.used, -base.debt)
    end
    return
  end
  r.level = math.max(base.capacity - div_ceil(r.used, r.token) * base.token, -base.debt)
  if r.milli == 0 and base.milli == 1 then r.at = div_ceil(r.at, 1000) end
  if r.milli == 1 and base.milli == 0 then r.at = math.min(r.at * 1000, NEVER) end
  r.offered, r.admitted, r.pieces, r.kept = nil, nil, {}, 0
end

-- What the shard knows of a key now, from what it has stored.
local function current(bytes, base, generation, now)
  local r = decode(bytes)
  local known = r and r.generation == generation
  if known then
    adapt(r, base)
  else
    -- What begins at the epoch is declared to be new, or full for its policy.
    local level = base.began == 0 and base.capacity or -base.debt
    r = { generation = generation, at = base.began, level = level, kept = 0, pieces = {} }
  end
  local since = r.at
  if r.offered and now >= r.kept then
    if r.kept > r.at then settle(r, r.kept, base) end
    r.offered, r.admitted, r.pieces, r.kept = nil, nil, {}, 0
  end
  settle(r, now, base)
  follow(r, base)
  r.anchored = known and r.at < since
  return r
end

-- Keeps a record until its schedule is over, and then for as long as the bucket may need to fill. A
-- clock that has stepped back a little first has to come back to where the bucket is settled.
local function store(key, r, base, now)
  local ahead = math.max(r.at, r.offered and r.kept or 0, now) - now
  local keep = base.keep_ms + math.ceil(ahead * base.micros / 1000)
  redis.call('SET', key, encode(r, base), 'PX', number(math.min(keep, KEEP_MAX_MS)))
end

-- A key without an end was not written by us alone, or not wholly: it gets one.
local function repair(key, bytes, base)
  if bytes and redis.call('PTTL', key) == -1 then
    redis.call('PEXPIRE', key, number(base.keep_ms))
  end
end
