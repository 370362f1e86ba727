"""What Redis does in one step: each script is all of a step that must not be seen half done."""

NAMES = ("specification", "key", "slots", "counts", "history", "taken", "average", "turned", "test", "visits")

BEGIN = """
-- Begins a pool unless there is one; gives the specification that is there.
-- KEYS: specification, key, slots, counts. ARGV: specification, key, prefix of rows, row, row, ...
local there = redis.call('GET', KEYS[1])
if there then return there end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], ARGV[2])
for i = 4, #ARGV do
  local version = string.format('%d', i - 4)
  redis.call('SET', ARGV[3] .. version, ARGV[i])
  redis.call('HSET', KEYS[3], version, version)
end
redis.call('HSET', KEYS[4], 'accepted', 0, 'version', #ARGV - 4, 'looks', 0)
return ARGV[1]
"""

AWAKE = """
-- Notes which run of Redis this is. After another one (whose last second may be lost) numbers of versions begin beyond
-- all that were ever given out: at the clock, in microseconds, which no pool outruns.
-- KEYS: counts. ARGV: the run, the microseconds. Gives 1 where it is another run.
if redis.call('HGET', KEYS[1], 'run') == ARGV[1] then return 0 end
local version = tonumber(redis.call('HGET', KEYS[1], 'version'))
redis.call('HSET', KEYS[1], 'run', ARGV[1], 'version', string.format('%.0f', math.max(version, tonumber(ARGV[2]))))
return 1
"""

ENTER = """
-- An answer enters a slot, and the next instance comes back.
-- KEYS: slots, counts, history, taken, visits. ARGV: prefix of rows, digest, slot, version expected there or '', row,
-- slot to hand out, version of it that the asker has, versions to remember, digests to remember,
-- the day or '' where everybody is admitted, the account, how many of its answers the day takes.
-- Gives: accepted / repeated / moved / over, the new version (moved: the one that is there), how many were accepted,
-- the version handed out, and its row unless the asker has it (moved: the row that is there).
local rows = ARGV[1]
local outcome, version, accepted = 'repeated', '', redis.call('HGET', KEYS[2], 'accepted')
if not accepted then return redis.error_reply('GONE there is no pool') end
local known = redis.call('ZSCORE', KEYS[4], ARGV[2])
if not known and ARGV[10] ~= '' then
  local day = redis.call('HGET', KEYS[5], 'day') or ''
  if ARGV[10] > day then redis.call('UNLINK', KEYS[5]) redis.call('HSET', KEYS[5], 'day', ARGV[10]) end
  local had = tonumber(redis.call('HGET', KEYS[5], ARGV[11]) or '0')
  if ARGV[10] < day or had >= tonumber(ARGV[12]) then outcome = 'over' end
end
if not known and outcome ~= 'over' then
  local old = redis.call('HGET', KEYS[1], ARGV[3])
  if ARGV[4] ~= '' and ARGV[4] ~= old then return {'moved', old, accepted, '', redis.call('GET', rows .. old)} end
  version = string.format('%.0f', redis.call('HINCRBY', KEYS[2], 'version', 1))
  accepted = redis.call('HINCRBY', KEYS[2], 'accepted', 1)
  redis.call('SET', rows .. version, ARGV[5])
  redis.call('HSET', KEYS[1], ARGV[3], version)
  redis.call('RPUSH', KEYS[3], old)
  if redis.call('LLEN', KEYS[3]) > tonumber(ARGV[8]) then redis.call('DEL', rows .. redis.call('LPOP', KEYS[3])) end
  redis.call('ZADD', KEYS[4], accepted, ARGV[2])
  if redis.call('ZCARD', KEYS[4]) > tonumber(ARGV[9]) then redis.call('ZREMRANGEBYRANK', KEYS[4], 0, 0) end
  if ARGV[10] ~= '' then redis.call('HINCRBY', KEYS[5], ARGV[11], 1) end
  outcome = 'accepted'
end
local there = redis.call('HGET', KEYS[1], ARGV[6])
return {outcome, version, accepted, there, there ~= ARGV[7] and redis.call('GET', rows .. there)}
"""

DRAW = """
-- The instance of a slot, as the last two of `ENTER`, and how many were accepted.
-- KEYS: slots, counts. ARGV: prefix of rows, slot, version that the asker has.
local accepted = redis.call('HGET', KEYS[2], 'accepted')
if not accepted then return redis.error_reply('GONE there is no pool') end
local there = redis.call('HGET', KEYS[1], ARGV[2])
return {accepted, there, there ~= ARGV[3] and redis.call('GET', ARGV[1] .. there)}
"""

LOOK = """
-- The average over time after one more look, if nobody else looked meanwhile.
-- KEYS: counts, average. ARGV: looks so far, the average.
if redis.call('HGET', KEYS[1], 'looks') ~= ARGV[1] then return 0 end
redis.call('HINCRBY', KEYS[1], 'looks', 1)
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""

SCRIPTS = {"begin": BEGIN, "awake": AWAKE, "enter": ENTER, "draw": DRAW, "look": LOOK}
