"""One contract for both stores: they do what a `Pool` does, answer by answer and bit by bit."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.kept_pool import fresh_pool
from incrowd.service.redis_store import RedisStore
from incrowd.service.store import EmbeddedStore, PoolStore
from tests.drawdiscard.mail import asked
from tests.service.devices import answered
from tests.service.redis_process import RedisProcess

RANDOM = SeededRandomness(seed=5)
Make = Callable[..., PoolStore]


@pytest.fixture(params=["embedded", "redis"])
def make(request: pytest.FixtureRequest, folder: Path) -> Make:
    if request.param == "embedded":
        return lambda specification, **keys: EmbeddedStore(specification, folder=folder, **keys)
    process: RedisProcess = request.getfixturevalue("own_redis")
    return lambda specification, **keys: RedisStore(specification, process.url, **keys)


def during(store: PoolStore, work: Callable[[PoolStore], Awaitable[None]]) -> None:
    async def main() -> None:
        await store.open()
        try:
            await work(store)
        finally:
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("changes", [{}, {"merge": 0.25}, {"merge": 0.5, "falls_every": 5}, {"instances": 1}], ids=str)
def test_a_store_does_what_a_pool_does(make: Make, changes: dict[str, object]) -> None:
    specification = asked(**changes)
    pool = fresh_pool(specification, RANDOM)

    async def work(store: PoolStore) -> None:
        handed = await store.draw()
        twin = pool.draw()
        for number in range(40):
            assert (handed.row == twin).all()
            assert handed.accepted == pool.discards
            answer = answered(store, handed, seed=number)
            reason, handed = await store.enter(answer)
            pool.discard(answer.weights)
            twin = pool.draw()
            assert reason is Reason.ACCEPTED
            figures = await store.figures()
            held = pool.instances.astype(np.float64)
            assert (figures.mean == held.mean(axis=0)).all()
            assert (figures.spread == (held.std(axis=0, ddof=1) if len(held) > 1 else 0)).all()
            assert (figures.mean == pool.weights()).all()
            assert figures.accepted == number + 1

    during(make(specification, randomness=RANDOM), work)


def test_parents_are_found_until_they_are_forgotten(make: Make) -> None:
    async def work(store: PoolStore) -> None:
        handed = await store.draw()
        answers, rows = [], []
        for number in range(60):
            answer = answered(store, handed, seed=number)
            answers.append(answer)
            rows.append(handed.row)
            _, handed = await store.enter(answered(store, handed, seed=1000 + number))
        found = [await store.parent(answer) for answer in answers]
        for row, parent in zip(rows, found, strict=True):
            assert parent is None or (isinstance(parent, np.ndarray) and (parent == row).all())
        kept = [parent is not None for parent in found]
        assert all(kept[-8:]), "the last replaced are there"
        assert not any(kept[:20]), "and those of long ago are not"

    during(make(asked(), history=8), work)


def test_an_answer_counts_once(make: Make) -> None:
    async def work(store: PoolStore) -> None:
        answer = answered(store, await store.draw(), seed=1)
        assert not await store.repeated(answer)
        outcomes = await asyncio.gather(*(store.enter(answer) for _ in range(20)))
        assert sorted(reason.name for reason, _ in outcomes) == ["ACCEPTED", *["REPEATED"] * 19]
        assert {handed.accepted for _, handed in outcomes} == {1}
        assert (await store.figures()).accepted == 1
        assert await store.parent(answer) is Reason.REPEATED
        assert await store.repeated(answer)

    during(make(asked(merge=0.5)), work)


def test_a_store_that_is_opened_again_goes_on(make: Make) -> None:
    """Tickets of before are good, answers of before are known, and rows are the same."""
    kept = []

    async def first(store: PoolStore) -> None:
        handed = await store.draw()
        taken = answered(store, handed, seed=1)
        await store.enter(taken)
        drawn = store.desk.hand_out(*handed[:2], accepted=0)
        kept.append((handed, taken, drawn, await store.figures()))

    async def then(store: PoolStore) -> None:
        handed, taken, drawn, figures = kept[0]
        assert await store.repeated(taken)
        again = store.desk.read(drawn.weights, drawn.ticket)
        assert not isinstance(again, Reason)
        parent = await store.parent(again)
        assert isinstance(parent, np.ndarray)
        assert (parent == handed.row).all()
        assert ((await store.figures()).mean == figures.mean).all()

    during(make(asked()), first)
    during(make(asked()), then)


def test_a_test_goes_on_with_what_it_had_learnt(make: Make) -> None:
    states = []

    async def first(store: PoolStore) -> None:
        handed = await store.draw()
        for number in range(50):
            answer = answered(store, handed, seed=number)
            store.desk.judge(answer, handed.row)
            _, handed = await store.enter(answer)
        states.append({name: array.copy() for name, array in store.desk.test.state().items()})

    async def then(store: PoolStore) -> None:
        state = store.desk.test.state()
        assert state.keys() == states[0].keys()
        for name, array in state.items():
            assert (array == states[0][name]).all(), name

    during(make(asked()), first)
    during(make(asked()), then)
