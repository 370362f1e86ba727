"""What an accepted answer costs at a Redis, in processor time: our client and redis-py's, a script and a transaction.

    python benchmarks/redis_clients.py --weights 387 --answers 4000

Sixty-four answers are under way at once. The transaction does what the script does but for looking the digest up and
comparing the version, which it cannot without asking first: it is what a script has to be compared with, no substitute.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import redis.asyncio
import uvloop

from contest.peak import processors
from contest.service import redis_on, specification
from harness import processes
from incrowd.service.redis_client import RedisClient, RedisPlace
from incrowd.service.redis_scripts import SCRIPTS
from incrowd.service.redis_store import PREFIX, RedisStore

AT_ONCE = 64
Step = Callable[[int], Awaitable[object]]

KEYS = [PREFIX + name for name in ("slots", "counts", "history", "taken")]
ROWS = PREFIX + "row:"


async def timed(step: Step, answers: int, database: int) -> dict[str, float]:
    """Microseconds of processor time an answer, here and at Redis, and answers a second."""
    before, spent, began = time.process_time(), processes.processor_seconds([database]), time.perf_counter()

    async def work(first: int) -> None:
        for number in range(first, answers, AT_ONCE):
            await step(number)

    await asyncio.gather(*(work(first) for first in range(AT_ONCE)))
    return {
        "client_us": 1e6 * (time.process_time() - before) / answers,
        "redis_us": 1e6 * (processes.processor_seconds([database]) - spent) / answers,
        "answers_per_second": answers / (time.perf_counter() - began),
    }


async def measured(socket: str, weights: int, answers: int, database: int) -> dict[str, dict[str, float]]:
    """All four."""
    asked = specification(weights)
    store = RedisStore(asked, RedisPlace(path=socket), history=256)
    await store.open()
    row, k = bytes(4 * weights), asked.instances

    async def prepared(client: RedisClient) -> None:
        await client.call_first("PING")

    own = RedisClient(RedisPlace(path=socket), prepare=prepared)
    await own.open()
    script = await own.call("SCRIPT", "LOAD", SCRIPTS["enter"])
    theirs = redis.asyncio.Redis(unix_socket_path=socket, max_connections=AT_ONCE)

    def given(number: int, name: str) -> tuple[str | bytes | int, ...]:
        digest = f"{name}{number}".encode()
        return ROWS, digest, number % k, "", row, (number * 7) % k, -1, 256, 4096

    async def own_script(number: int) -> object:
        return await own.call("EVALSHA", script, len(KEYS), *KEYS, *given(number, "own"))

    async def their_script(number: int) -> object:
        return await theirs.evalsha(script.decode(), len(KEYS), *KEYS, *given(number, "theirs"))

    async def own_transaction(number: int) -> object:
        version = str(10**15 + number)
        calls = [
            ("MULTI",),
            ("SET", ROWS + version, row),
            ("HSET", KEYS[0], str(number % k), version),
            ("HINCRBY", KEYS[1], "accepted", "1"),
            ("RPUSH", KEYS[2], version),
            ("LPOP", KEYS[2]),
            ("ZADD", KEYS[3], str(number), f"transaction{number}"),
            ("ZREMRANGEBYRANK", KEYS[3], "0", "-4097"),
            ("GET", ROWS + version),
            ("EXEC",),
        ]
        return await asyncio.gather(*(own.call(*call) for call in calls))

    async def their_transaction(number: int) -> object:
        version = str(2 * 10**15 + number)
        async with theirs.pipeline(transaction=True) as pipe:
            pipe.set(ROWS + version, row)
            pipe.hset(KEYS[0], str(number % k), version)
            pipe.hincrby(KEYS[1], "accepted", 1)
            pipe.rpush(KEYS[2], version)
            pipe.lpop(KEYS[2])
            pipe.zadd(KEYS[3], {f"their transaction{number}": number})
            pipe.zremrangebyrank(KEYS[3], 0, -4097)
            pipe.get(ROWS + version)
            return await pipe.execute()

    steps = (own_script, own_transaction, their_script, their_transaction)
    found = {step.__name__.replace("_", " "): await timed(step, answers, database) for step in steps}
    await theirs.aclose()
    await own.close()
    await store.close()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=387)
    parser.add_argument("--answers", type=int, default=4_000)
    parser.add_argument("--json", action="store_true", help="figures for a program")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="incrowd-redis-") as folder,
        redis_on(Path(folder), processors()[0]) as database,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(measured(f"{folder}/redis.sock", given.weights, given.answers, database))
    if given.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(f"{name:20}", "  ".join(f"{what} {value:.0f}" for what, value in figures.items()))


if __name__ == "__main__":
    main()
