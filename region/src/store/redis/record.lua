-- What every script begins with: records, read and settled as `record.rs` and `bucket.rs` do it.
--
-- All numbers are integers below 2^53, which a Lua number holds exactly. A product that is larger
-- is rounded, but then it exceeds every capacity, so that the minimum is right all the same.

local NEVER = 9007199254740991
local COUNT_WRAP = 281474976710656
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
  if not bytes or #bytes < 37 then return nil end
  local r, format, flags, at = {}, nil, nil, nil
  format, flags, r.generation, r.at, r.level, r.capacity, r.token, at =
    struct.unpack('>BBI7I7i7i7i7', bytes)
  if format ~= 1 or flags > 3 or r.token < 1 then return nil end
  r.milli = flags >= 2 and 1 or 0
  r.kept, r.pieces = 0, {}
  if flags % 2 == 0 then return #bytes == 37 and r or nil end
  if #bytes < 58 then return nil end
  local count
  r.kept, r.offered, r.admitted, count, at = struct.unpack('>I7I6I6I2', bytes, at)
  if #bytes ~= 58 + 21 * count then return nil end
  r.pieces = pieces_of(bytes, at, count)
  return r
end

local function encode(r, base)
  local flags = (r.offered and 1 or 0) + 2 * base.milli
  local head = struct.pack('>BBI7I7i7i7i7', 1, flags, r.generation, r.at, r.level, r.capacity,
    base.token)
  if not r.offered then return head end
  local parts = { head, struct.pack('>I7I6I6I2', r.kept, r.offered, r.admitted, #r.pieces / 3) }
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

-- Carries over what was used, in whole tokens, where the limit has been changed.
local function adapt(r, base)
  local scheduled = #r.pieces > 0
  if r.milli == base.milli and r.token == base.token
    and (scheduled or r.capacity == base.capacity) then
    return
  end
  local used = math.max(r.capacity - r.level, 0)
  r.level = math.max(base.capacity - div_ceil(used, r.token) * base.token, -base.debt)
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
    r = { generation = generation, at = base.began, level = -base.debt, kept = 0, pieces = {} }
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
