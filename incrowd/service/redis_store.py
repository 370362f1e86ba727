"""A pool in Redis, which several servers share.

Redis keeps an unchanging row under the number of each version, and a table of the version in each slot. One script
enters an answer and hands out the next instance; it leaves out a row that the server has.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from contextlib import nullcontext, suppress
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
from incrowd.drawdiscard.server import PoolFigures
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.service.store import HandedOut, StoreAway

PREPARE = """
-- Begins a pool if there is none and rows are given, and notes the present run of Redis. After another run, which may
-- have lost its last second, version numbers go on from the clock in microseconds: beyond all numbers ever given out.
-- KEYS: specification, key, slots, counts, test. ARGV: prefix of rows, specification, key, run, microseconds, row, ...
-- Gives the stored specification, key and state of the test.
if #ARGV > 5 and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SET', KEYS[1], ARGV[2])
  redis.call('SET', KEYS[2], ARGV[3])
  for i = 6, #ARGV do
    local version = string.format('%d', i - 6)
    redis.call('SET', ARGV[1] .. version, ARGV[i])
    redis.call('HSET', KEYS[3], version, version)
  end
  redis.call('HSET', KEYS[4], 'accepted', 0, 'version', #ARGV - 6)
end
local version = tonumber(redis.call('HGET', KEYS[4], 'version') or '')
local ours = redis.call('GET', KEYS[1]) == ARGV[2]
if ours and version and redis.call('HGET', KEYS[4], 'run') ~= ARGV[4] then
  version = string.format('%.0f', math.max(version, tonumber(ARGV[5])))
  redis.call('HSET', KEYS[4], 'run', ARGV[4], 'version', version)
end
return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2]), redis.call('GET', KEYS[5])}
"""

EXCHANGE = """
-- Enters an answer, if there is one, and hands out the instance of a slot.
-- KEYS: slots, counts, history, taken, visits. ARGV: prefix of rows, slot to hand out, the server's version of it; and
-- of an answer: digest, slot, version expected there or '', row, versions to remember, digests to remember,
-- day or '' without admission, account, answers of the account that the day takes.
-- Gives: drawn / accepted / repeated / moved / over, the new version, the number of accepted answers, and a slot with
-- its version and its row, unless the server has that: the slot to hand out, or the answer's, which has moved.
local rows, out, digest, had_day = ARGV[1], ARGV[2], ARGV[4], ARGV[10]
local outcome, version, accepted = 'drawn', '', redis.call('HGET', KEYS[2], 'accepted')
if not accepted then return redis.error_reply('GONE there is no pool') end
if digest then
  outcome = redis.call('ZSCORE', KEYS[4], digest) and 'repeated' or 'accepted'
end
if outcome == 'accepted' and had_day ~= '' then
  local day = redis.call('HGET', KEYS[5], 'day') or ''
  if had_day > day then redis.call('UNLINK', KEYS[5]) redis.call('HSET', KEYS[5], 'day', had_day) end
  local had = tonumber(redis.call('HGET', KEYS[5], ARGV[11]) or '0')
  if had_day < day or had >= tonumber(ARGV[12]) then outcome = 'over' end
end
if outcome == 'accepted' then
  local old = redis.call('HGET', KEYS[1], ARGV[5])
  if ARGV[6] ~= '' and ARGV[6] ~= old then
    return {'moved', '', accepted, ARGV[5], old, redis.call('GET', rows .. old)}
  end
  version = string.format('%.0f', redis.call('HINCRBY', KEYS[2], 'version', 1))
  accepted = redis.call('HINCRBY', KEYS[2], 'accepted', 1)
  redis.call('SET', rows .. version, ARGV[7])
  redis.call('HSET', KEYS[1], ARGV[5], version)
  redis.call('RPUSH', KEYS[3], old)
  if redis.call('LLEN', KEYS[3]) > tonumber(ARGV[8]) then redis.call('DEL', rows .. redis.call('LPOP', KEYS[3])) end
  redis.call('ZADD', KEYS[4], accepted, digest)
  if redis.call('ZCARD', KEYS[4]) > tonumber(ARGV[9]) then redis.call('ZREMRANGEBYRANK', KEYS[4], 0, 0) end
  if had_day ~= '' then redis.call('HINCRBY', KEYS[5], ARGV[11], 1) end
end
local there = redis.call('HGET', KEYS[1], out)
return {outcome, version, accepted, out, there, there ~= ARGV[3] and redis.call('GET', rows .. there)}
"""

PREFIX = "{incrowd}:"
"""The prefix of all keys; its braces keep them together in a cluster."""

_ROWS = PREFIX + "row:"
_NAMES = ("specification", "key", "slots", "counts", "history", "taken", "turned", "test", "visits")
_KEYS = {name: PREFIX + name for name in _NAMES}
_TO_PREPARE = [_KEYS[name] for name in ("specification", "key", "slots", "counts", "test")]
_TO_EXCHANGE = [_KEYS[name] for name in ("slots", "counts", "history", "taken", "visits")]
_REASONS = {b"accepted": Reason.ACCEPTED, b"repeated": Reason.REPEATED, b"over": Reason.DAY_OVER}

TRIES = 1_000
LOST = "Redis has lost the pool: put it back, or restart the servers to begin another one"
CONNECTIONS, PATIENCE_S = 64, 3.0
_LOOK_EVERY_S, _TELL_EVERY, _TEST_EVERY = 0.2, 5, 150  # the last two are numbers of looks


class RedisStore:
    """A pool of one specification in Redis, for any number of servers.

    Guarantee: see `PoolStore`. An answer enters once and as a whole, and its average is with the instance that is there
    at that moment, whatever number of servers offer it. Redis has every acknowledged answer; its own settings decide
    what it can lose (docs/service.md).

    Edge cases: without Redis the methods raise `StoreAway`, and the store connects again by itself. After Redis lost
    the pool the store stays away until you restart the servers or put the pool back: no second pool begins unnoticed.
    Each server learns its own test of answers, and stores it for servers that start later.
    """

    def __init__(
        self, specification: Specification, url: str, *, history: int = HISTORY, **desk: Unpack[DeskSettings]
    ) -> None:
        self._specification, self._history = specification, history
        self._known_again = known_again(history=history, instances=specification.instances)
        self._source = desk["randomness"] = desk.get("randomness") or SystemRandomness()
        self._of_desk = desk
        self._fresh_key = self._source.stream("tickets").bits(KEY_BYTES // 8).tobytes()
        self.desk = Desk(specification, key=self._fresh_key, **desk)
        self._redis = redis_at(url)
        self._begun = self._ready = False
        self.trouble: str | None = None
        self._script = b""
        self._draws, self._discards = Picks(self._source, "draw"), Picks(self._source, "discard")
        self._merge = np.float32(specification.merge)
        self._slots: list[int] = [-1] * specification.instances
        self._locks = [asyncio.Lock() for _ in self._slots]
        self._rows: OrderedDict[int, Instance] = OrderedDict()
        self._taken: OrderedDict[bytes, None] = OrderedDict()
        self.turned: Counter[str] = Counter()
        self._looking: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """See `PoolStore.open`."""
        try:
            await self._prepare()
        except IncrowdError:
            await self._redis.aclose()
            raise
        self._looking = asyncio.create_task(self._look_regularly())

    async def draw(self) -> HandedOut:
        """See `PoolStore.draw`."""
        return (await self._exchange(self._draws.among(len(self._slots))))[2]

    async def parent(self, answer: Returned) -> Instance | Reason | None:
        """See `PoolStore.parent`. Only `enter` and `repeated` know the answers that another server took."""
        return Reason.REPEATED if answer.digest in self._taken else await self._row(answer.ticket.version)

    async def repeated(self, answer: Returned) -> bool:
        """See `PoolStore.repeated`."""
        known = answer.digest in self._taken
        return known or await self._call("ZSCORE", _KEYS["taken"], answer.digest) is not None

    async def enter(self, answer: Returned) -> tuple[Reason, HandedOut]:
        """See `PoolStore.enter`."""
        slot = self._discards.among(len(self._slots))
        row, expected = answer.weights, -1
        async with self._locks[slot] if self._merge < 1 else nullcontext():  # this server's answers do not move it
            for _ in range(TRIES):
                if self._merge < 1:
                    expected = self._slots[slot]
                    held = self._rows.get(expected)
                    if held is None:
                        expected, held, _ = (await self._exchange(slot))[2]
                    row = merged(held, answer.weights, self._merge)
                following = self._draws.among(len(self._slots))
                outcome, version, handed = await self._exchange(
                    following,
                    *(answer.digest, slot, "" if expected < 0 else expected, _bytes(row)),
                    *(self._history, self._known_again, *(answer.visit or ("", b"", 0))),
                )
                if outcome != b"moved":
                    break
            else:
                raise StoreAway("too many answers enter at once")
        if outcome == b"accepted":
            self._remember(int(version), row)
        if outcome != b"over":
            self._taken[answer.digest] = None
            if len(self._taken) > self._known_again:
                self._taken.popitem(last=False)
        return _REASONS[outcome], handed

    async def figures(self) -> PoolFigures:
        """See `PoolStore.figures`."""
        await self._tell()
        accepted = await self._accepted()
        slots = {int(slot): int(version) for slot, version in (await self._call("HGETALL", _KEYS["slots"])).items()}
        rows = [row for slot in sorted(slots) if (row := await self._row(slots[slot])) is not None]
        turned = await self._call("HGETALL", _KEYS["turned"])
        counts = {name.decode(): int(count) for name, count in turned.items()}
        return await asyncio.to_thread(PoolFigures.of, rows, accepted=accepted, turned=counts)

    async def close(self) -> None:
        """See `PoolStore.close`."""
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        with suppress(StoreAway):
            await self._tell()
            await self._keep_test()
        await self._redis.aclose()

    async def _prepare(self) -> None:
        """Find or begin the pool, and note the run of Redis; load the script last.

        A restarted Redis has no script, so a server enters nothing before one of them has prepared it.
        """
        own = self._specification.to_json().encode()
        rows = [] if self._begun else [*fresh_pool(self._specification, self._source).instances]
        run = (await self._send("INFO", "server"))["run_id"]
        stated = (_ROWS, own, self._fresh_key, run, time.time_ns() // 1000)
        there, key, test = await self._send(
            "EVAL", PREPARE, len(_TO_PREPARE), *_TO_PREPARE, *stated, *(_bytes(row) for row in rows)
        )
        if there is None:
            raise StoreAway(LOST)
        if there != own:
            remedy = "it has the pool of another specification: give that one, or another database of this Redis"
            raise ConfigError(field="store", value="redis", remedy=remedy)
        self._rows.clear()  # another run may have forgotten rows of this process
        self._slots = [-1] * len(self._slots)
        if not self._begun:
            self._begin_desk(key, test)
        self._script = await self._send("SCRIPT LOAD", EXCHANGE)
        self._begun = self._ready = True
        self.trouble = None

    def _begin_desk(self, key: bytes, test: bytes | None) -> None:
        if len(key) != KEY_BYTES:
            raise DataError(f"the key of the tickets in Redis has {len(key)} bytes, not {KEY_BYTES}: put a copy back")
        self.desk = Desk(self._specification, key=key, **self._of_desk)
        if test is not None:
            try:
                self.desk.test.restore(unpacked(test))
            except ValueError as error:
                raise DataError(f"the test's memory is damaged in Redis ({error}): delete that key") from error

    async def _exchange(self, slot: int, *answer: str | bytes | int) -> tuple[bytes, bytes, HandedOut]:
        """Run the script: the outcome of an answer, its new version, and an instance."""
        known = self._slots[slot] if self._slots[slot] in self._rows else -1
        outcome, entered, accepted, out, version, body = await self._call(
            "EVALSHA", self._script, len(_TO_EXCHANGE), *_TO_EXCHANGE, _ROWS, slot, known, *answer
        )
        if outcome == b"accepted":
            self._slots[int(answer[1])] = int(entered)
        number = self._slots[int(out)] = int(version)
        row = await self._row(number) if body is None else self._remember(number, np.frombuffer(body, "<f4"))
        if row is None:  # both forgot it while the reply was on its way
            raise StoreAway("a row was replaced long ago: ask again")
        return outcome, entered, HandedOut(number, row, int(accepted))

    async def _call(self, *command: str | bytes | int) -> Any:
        """Send a command; raise `StoreAway` at once while Redis is known to be away."""
        if not self._ready:
            raise StoreAway(self.trouble or "there is no connection to Redis")
        return await self._send(*command)

    async def _send(self, *command: str | bytes | int) -> Any:
        """Send a command once; without a reply its fate is unknown."""
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
        """Send nothing more until the next look at Redis."""
        self._ready, self.trouble = False, why
        return StoreAway(why)

    async def _accepted(self) -> int:
        count = await self._call("HGET", _KEYS["counts"], "accepted")
        if count is None:
            raise self._gone(LOST)
        return int(count)

    async def _row(self, version: int) -> Instance | None:
        known = self._rows.get(version)
        if known is not None:
            return known
        body = await self._call("GET", f"{_ROWS}{version}")
        return None if body is None else self._remember(version, np.frombuffer(body, "<f4"))

    def _remember(self, version: int, row: Instance) -> Instance:
        self._rows[version] = row
        while len(self._rows) > len(self._slots) + self._history:
            self._rows.popitem(last=False)
        return row

    async def _tell(self) -> None:
        """Add the counts of refused answers to those in Redis."""
        for reason in list(self.turned):
            count = self.turned.pop(reason)
            try:
                await self._call("HINCRBY", _KEYS["turned"], reason, count)
            except StoreAway:
                self.turned[reason] += count
                raise

    async def _keep_test(self) -> None:
        await self._call("SET", _KEYS["test"], packed(self.desk.test.state()))

    async def _look_regularly(self) -> None:
        """Come back to a Redis that was away, and tell it the counts."""
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            looks += 1
            try:
                if not self._ready:
                    await self._prepare()
                elif looks % _TELL_EVERY == 0:
                    await self._accepted()
                    await self._tell()
                    if looks % _TEST_EVERY == 0:
                        await self._keep_test()
            except IncrowdError as error:
                self.trouble = self.trouble if self._ready else str(error)


def _bytes(row: Instance) -> bytes:
    base: object = row.base
    return base if isinstance(base, bytes) and len(base) == row.nbytes else row.astype("<f4").tobytes()


def redis_at(url: str) -> "Redis":
    """Make a client of ``redis://``, ``rediss://`` (TLS) or ``unix://`` that sends a command once."""
    waits = {"timeout": PATIENCE_S, "socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S}
    try:
        pool = BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS, retry=Retry(NoBackoff(), 0), **waits)
    except ValueError as error:
        remedy = "give memory, redis://, rediss:// or unix://"
        raise ConfigError(field="store", value=url.partition(":")[0], remedy=remedy) from error
    return Redis.from_pool(pool)
