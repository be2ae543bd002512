-- Finds out whether the shard remembers what it did when it was last asked, and begins a new
-- generation if it may not. KEYS: marker. ARGV: the highest generation seen; the hash of the shard
-- map; '1' if another map is a loss of memory, too; '1' if a shard without a marker is new. Answers
-- the generation and when it began, packed, the eviction policy, and how many replicas follow.
--
-- The marker names the process that wrote it. A run id changes with every start, so that a restored
-- snapshot shows. The second replication id is set when a replica is promoted, so that a demotion
-- and promotion of one process shows; it is empty where that never happened, and the first id
-- would also change when a first replica is attached, which loses nothing.

local MARKER_KEEP_MS = '604800000'
local HEAD_LEN, RUN_LEN, PROMOTED_LEN, MAP_LEN = 14, 40, 40, 8
-- Half of what a number holds exactly: clocks reach it in the year 2112. A higher generation is not
-- ours, and would leave none to come after it.
local GENERATION_MAX = 4503599627370496
local NEVER_PROMOTED = string.rep('0', PROMOTED_LEN)

local function field(section, name)
  return string.match(redis.call('INFO', section), name .. ':([%w-]+)') or ''
end

local function fixed(text, length)
  return string.sub(text .. string.rep('0', length), 1, length)
end

local run = fixed(field('server', 'run_id'), RUN_LEN)
local promoted = fixed(field('replication', 'master_replid2'), PROMOTED_LEN)
local policy = field('memory', 'maxmemory_policy')
local _, replicas = string.gsub(redis.call('INFO', 'replication'), 'state=online', '')
local seen = struct.unpack('>I7', ARGV[1])
-- MGET, because it answers nothing where GET fails: at a key that holds no text.
local marker = redis.call('MGET', KEYS[1])[1]
local whole = marker and #marker == HEAD_LEN + RUN_LEN + PROMOTED_LEN + MAP_LEN
  and struct.unpack('>I7', marker) <= GENERATION_MAX

local intact = false
local head
if whole then
  head = string.sub(marker, 1, HEAD_LEN)
  local generation = struct.unpack('>I7', marker)
  local at_run = string.sub(marker, HEAD_LEN + 1, HEAD_LEN + RUN_LEN)
  local at_promoted = string.sub(marker, HEAD_LEN + RUN_LEN + 1, -MAP_LEN - 1)
  intact = at_run == run and (promoted == at_promoted or promoted == NEVER_PROMOTED)
    and (ARGV[3] ~= '1' or string.sub(marker, -MAP_LEN) == ARGV[2]) and generation >= seen
  seen = math.max(seen, generation)
end
if intact then
  redis.call('PEXPIRE', KEYS[1], MARKER_KEEP_MS)
else
  local time = redis.call('TIME')
  local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local began = us
  if ARGV[4] == '1' and redis.call('EXISTS', KEYS[1]) == 0 then began = 0 end
  head = struct.pack('>I7I7', math.max(us, seen + 1), began)
  redis.call('SET', KEYS[1], head .. run .. promoted .. ARGV[2], 'PX', MARKER_KEEP_MS)
end
return { head, policy, replicas }
