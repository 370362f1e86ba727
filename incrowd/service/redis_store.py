"""A pool in Redis, which several servers share.

A row lies under the number of its version and never changes; a table says which version is in which slot. So an answer
is one script, which sends the next instance back with it, unless the server has that one already.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from typing import Any, Unpack

import numpy as np
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from incrowd._random import SystemRandomness
from incrowd.drawdiscard.desk import KEY_BYTES, Desk, DeskSettings, Reason, Returned
from incrowd.drawdiscard.kept_pool import fresh_pool, known_again, packed, unpacked
from incrowd.drawdiscard.pool import HISTORY, Instance, Picks, merged
from incrowd.drawdiscard.showing import PoolFigures
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.service.store import HandedOut, StoreAway

NAMES = ("specification", "key", "slots", "counts", "history", "taken", "turned", "test", "visits")

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
redis.call('HSET', KEYS[4], 'accepted', 0, 'version', #ARGV - 4)
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

SCRIPTS = {"begin": BEGIN, "awake": AWAKE, "enter": ENTER, "draw": DRAW}


PREFIX = "{incrowd}:"
"""What the names of all keys begin with; the braces keep them together where Redis is a cluster."""

TRIES = 1_000
"""So often an answer is merged anew because another one entered its slot meanwhile."""

LOST = "Redis has lost the pool: put it back, or restart the servers to begin another one"

CONNECTIONS, PATIENCE_S = 64, 3.0
"""Connections of one process to Redis, and seconds that a command may take."""

_LOOK_EVERY, _TELL_EVERY, _TEST_EVERY = 0.2, 5, 150
"""Seconds between two looks at whether Redis is there; every so many looks counts and the test's memory are told."""


class RedisStore:
    """A pool in Redis, of one specification; any number of servers.

    Guarantee: see `PoolStore`: whatever the number of servers, an answer enters once and as a whole, and where it is
    averaged into an instance, into the one that is there at that moment. An answer that was acknowledged is in Redis;
    what Redis loses is for its own settings to say (docs/service.md). Redis away is `StoreAway` until it is back, and
    nothing has to be restarted.

    A Redis that has lost the pool while the servers ran stays away until they are restarted or the pool is put back: no
    second pool begins unnoticed. What the test of answers has learnt is each server's own, and is put aside for servers
    that start; counts of what was turned away are told once a second.
    """

    def __init__(
        self,
        specification: Specification,
        url: str,
        *,
        history: int = HISTORY,
        **desk: Unpack[DeskSettings],
    ) -> None:
        self._specification, self._history = specification, history
        self._known_again = known_again(history=history, instances=specification.instances)
        self._source = desk["randomness"] = desk.get("randomness") or SystemRandomness()
        self._of_desk = desk
        self._fresh = self._source.stream("tickets").bits(KEY_BYTES // 8).tobytes()
        self.desk = Desk(specification, key=self._fresh, **self._of_desk)
        self._redis = redis_at(url)
        self._ready = False
        self.trouble: str | None = None
        self._keys = {name: PREFIX + name for name in NAMES}
        self._rows = PREFIX + "row:"
        self._scripts: dict[str, bytes] = {}
        self._draws, self._discards = Picks(self._source, "draw"), Picks(self._source, "discard")
        self._merge = np.float32(specification.merge)
        self._slots: list[int] = [-1] * specification.instances
        self._locks = [asyncio.Lock() for _ in self._slots]
        self._known: OrderedDict[int, Instance] = OrderedDict()
        self._taken: OrderedDict[bytes, None] = OrderedDict()
        self._turned: Counter[str] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self._begun = False

    async def open(self) -> None:
        """See `PoolStore.open`."""
        try:
            await self._prepare()
        except IncrowdError:
            await self._redis.aclose()
            raise
        self._looking = asyncio.create_task(self._look_now_and_then())

    async def draw(self) -> HandedOut:
        """See `PoolStore.draw`."""
        slot = self._draws.among(len(self._slots))
        keys = "slots", "counts"
        accepted, version, row = await self._run("draw", keys, self._rows, slot, self._had(slot))
        return await self._handed(slot, int(accepted), int(version), row)

    async def parent(self, answer: Returned) -> Instance | Reason | None:
        """See `PoolStore.parent`. What was taken by another server is known when it is about to enter."""
        if answer.digest in self._taken:
            return Reason.REPEATED
        return await self._row(answer.ticket.version)

    async def repeated(self, answer: Returned) -> bool:
        """See `PoolStore.repeated`."""
        known = answer.digest in self._taken
        return known or await self._call("ZSCORE", self._keys["taken"], answer.digest) is not None

    async def enter(self, answer: Returned) -> tuple[Reason, HandedOut]:
        """See `PoolStore.enter`."""
        slot = self._discards.among(len(self._slots))
        if self._merge == 1:
            reason, instance = await self._into(answer, slot, "", answer.weights)
        else:
            async with self._locks[slot]:  # two of our own would send each other away
                reason, instance = await self._averaged_into(answer, slot)
        if reason is not Reason.DAY_OVER:
            self._take(answer.digest)
        return reason, instance

    async def figures(self) -> PoolFigures:
        """See `PoolStore.figures`."""
        await self._tell()
        accepted = await self._accepted()
        rows = await self._instances()
        turned = await self._call("HGETALL", self._keys["turned"])
        counts = {name.decode(): int(count) for name, count in turned.items()}
        return await asyncio.to_thread(PoolFigures.of, rows, accepted=accepted, turned=counts)

    def count(self, reason: str) -> None:
        """See `PoolStore.count`."""
        self._turned[reason] += 1

    async def close(self) -> None:
        """See `PoolStore.close`."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        with suppress(StoreAway):
            await self._tell()
            await self._call("SET", self._keys["test"], packed(self.desk.test.state()))
        await self._redis.aclose()

    async def _prepare(self) -> None:
        """Find the pool, or begin it, and note which run of Redis this is; the scripts come last.

        A Redis that was restarted has no scripts, so that no server enters anything before one of them was here.
        """
        own = self._specification.to_json().encode()
        there = await self._send("GET", self._keys["specification"])
        if there is None and self._begun:
            raise StoreAway(LOST)
        if there is None:
            there = await self._begin(own)
        if there != own:
            remedy = "it has the pool of another specification: give that one, or another database of this Redis"
            raise ConfigError(field="store", value="redis", remedy=remedy)
        run = (await self._send("INFO", "server"))["run_id"]
        now = time.time_ns() // 1000
        await self._send("EVAL", SCRIPTS["awake"], 1, self._keys["counts"], run, now)
        self._known.clear()  # another run may have forgotten what this process knows
        self._slots = [-1] * len(self._slots)
        key = await self._send("GET", self._keys["key"])
        if not self._begun:
            self._begin_desk(key, await self._send("GET", self._keys["test"]))
        for name in ("enter", "draw"):
            self._scripts[name] = await self._send("SCRIPT LOAD", SCRIPTS[name])
        self._begun = self._ready = True
        self.trouble = None

    async def _begin(self, own: bytes) -> bytes:
        pool = fresh_pool(self._specification, self._source, history=self._history)
        rows = [_bytes(row) for row in pool.instances]
        keys = [self._keys[name] for name in ("specification", "key", "slots", "counts")]
        there: bytes = await self._send("EVAL", SCRIPTS["begin"], 4, *keys, own, self._fresh, self._rows, *rows)
        return there

    def _begin_desk(self, key: bytes, state: bytes | None) -> None:
        if len(key) != KEY_BYTES:
            raise DataError(f"the key of the tickets in Redis has {len(key)} bytes, not {KEY_BYTES}: put a copy back")
        self.desk = Desk(self._specification, key=key, **self._of_desk)
        if state is not None:
            try:
                self.desk.test.restore(unpacked(state))
            except ValueError as error:
                raise DataError(f"what the test had learnt is damaged in Redis ({error}): delete that key") from error

    async def _run(self, name: str, keys: tuple[str, ...], *given: str | bytes | int) -> Any:
        return await self._call("EVALSHA", self._scripts[name], len(keys), *(self._keys[key] for key in keys), *given)

    async def _call(self, *command: str | bytes | int) -> Any:
        """The reply to a command; `StoreAway` at once while Redis is known to be away."""
        if not self._ready:
            raise StoreAway(self.trouble or "there is no connection to Redis")
        return await self._send(*command)

    async def _send(self, *command: str | bytes | int) -> Any:
        """The reply to a command, which is sent once: whether it was done is unknown where there is none."""
        try:
            return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]  # redis has no types for it
        except ResponseError as error:
            if str(error).startswith("GONE"):
                raise self._gone(LOST) from error
            if isinstance(error, NoScriptError):
                raise self._gone("Redis was started anew") from error
            raise StoreAway(f"Redis refuses: {error}") from error
        except (RedisError, OSError) as error:
            why = f"Redis is out of reach ({error}): start it, or give its address and password as --store"
            raise self._gone(why) from error

    def _gone(self, why: str) -> StoreAway:
        """Nothing is sent any more until Redis is looked at again."""
        self._ready, self.trouble = False, why
        return StoreAway(why)

    async def _accepted(self) -> int:
        count = await self._call("HGET", self._keys["counts"], "accepted")
        if count is None:
            raise self._gone(LOST)
        return int(count)

    async def _into(self, answer: Returned, slot: int, expected: int | str, row: Instance) -> tuple[Reason, HandedOut]:
        """The answer entered; `_Moved` where something else than expected is in the slot."""
        following = self._draws.among(len(self._slots))
        sent, visit = _bytes(row), answer.visit or ("", b"", 0)
        outcome, version, accepted, there, body = await self._run(
            "enter",
            ("slots", "counts", "history", "taken", "visits"),
            *(self._rows, answer.digest, slot, expected, sent),
            *(following, self._had(following), self._history, self._known_again, *visit),
        )
        if outcome == b"moved":
            await self._handed(slot, int(accepted), int(version), body)
            raise _Moved
        if outcome == b"accepted":
            self._remember(int(version), row)
            self._slots[slot] = int(version)
        reason = _REASONS[outcome]
        return reason, await self._handed(following, int(accepted), int(there), body)

    async def _averaged_into(self, answer: Returned, slot: int) -> tuple[Reason, HandedOut]:
        for _ in range(TRIES):
            version = self._slots[slot]
            held = self._known.get(version)
            if held is None:
                keys = "slots", "counts"
                accepted, there, body = await self._run("draw", keys, self._rows, slot, -1)
                version, held, _ = await self._handed(slot, int(accepted), int(there), body)
            with suppress(_Moved):
                return await self._into(answer, slot, version, merged(held, answer.weights, self._merge))
        raise StoreAway("too many answers enter at once")

    async def _row(self, version: int) -> Instance | None:
        known = self._known.get(version)
        if known is not None:
            return known
        body = await self._call("GET", f"{self._rows}{version}")
        return None if body is None else self._remember(version, np.frombuffer(body, "<f4"))

    def _had(self, slot: int) -> int:
        """The version that this process has of a slot; -1 where it has none."""
        version = self._slots[slot]
        return version if version in self._known else -1

    async def _handed(self, slot: int, accepted: int, version: int, body: bytes | None) -> HandedOut:
        """An instance as a script gives it: without its row where this process has told that it has it."""
        self._slots[slot] = version
        row = await self._row(version) if body is None else self._remember(version, np.frombuffer(body, "<f4"))
        if row is None:  # forgotten here, and replaced there, while the reply was on its way
            raise StoreAway("a row was replaced long ago: ask again")
        return HandedOut(version, row, accepted)

    def _remember(self, version: int, row: Instance) -> Instance:
        known = self._known
        known[version] = row
        while len(known) > len(self._slots) + self._history:
            known.popitem(last=False)
        return row

    def _take(self, digest: bytes) -> None:
        self._taken[digest] = None
        if len(self._taken) > self._known_again:
            self._taken.popitem(last=False)

    async def _instances(self) -> list[Instance]:
        table = await self._call("HGETALL", self._keys["slots"])
        pairs = {int(slot): int(version) for slot, version in table.items()}
        return [row for slot in sorted(pairs) if (row := await self._row(pairs[slot])) is not None]

    async def _tell(self) -> None:
        turned, self._turned = self._turned, Counter()
        try:
            for reason, count in turned.items():
                await self._call("HINCRBY", self._keys["turned"], reason, count)
        except StoreAway:
            self._turned += turned
            raise

    async def _look_now_and_then(self) -> None:
        """Come back to a Redis that was away; tell it what happened here."""
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            looks += 1
            try:
                if not self._ready:
                    await self._prepare()
                elif looks % _TELL_EVERY == 0:
                    await self._accepted()
                    await self._tell()
                    if looks % _TEST_EVERY == 0:
                        await self._call("SET", self._keys["test"], packed(self.desk.test.state()))
            except IncrowdError as error:
                self.trouble = str(error) if not self._ready else self.trouble


_REASONS = {b"accepted": Reason.ACCEPTED, b"repeated": Reason.REPEATED, b"over": Reason.DAY_OVER}


class _Moved(Exception):
    """Another answer has entered the slot meanwhile."""


def _bytes(row: Instance) -> bytes:
    base: object = row.base
    return base if isinstance(base, bytes) and len(base) == row.nbytes else row.astype("<f4").tobytes()


def redis_at(url: str) -> "Redis":
    """A client of the Redis at ``redis://``, ``rediss://`` (TLS) or ``unix://``, which sends a command once."""
    once = Retry(NoBackoff(), 0)
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=PATIENCE_S,
            socket_timeout=PATIENCE_S,
            socket_connect_timeout=PATIENCE_S,
            retry=once,
        )
    except ValueError as error:
        remedy = "give memory, redis://, rediss:// or unix://"
        raise ConfigError(field="store", value=url.partition(":")[0], remedy=remedy) from error
    return Redis.from_pool(pool)
