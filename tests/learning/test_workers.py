import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from incrowd import Local
from incrowd.errors import ConfigError
from incrowd.learning import CohortEngine, Execution, Model, mlp
from incrowd.learning.contributions import ShortenedSum, Shortening
from incrowd.learning.workers import CAN_FORK
from tests.learning.backends.test_loop import Centred
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, clients, trained

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="workers are forked")

COHORT = range(8)
MODEL = mlp((FEATURES, 70, CLASSES))


def engine(threads: int) -> CohortEngine:
    local = Local(learning_rate=0.3, batch_size=4)
    return CohortEngine(MODEL, clients(), local, Execution(threads=threads, chunk=1))


def pids(one: CohortEngine) -> list[int]:
    assert one._pool is not None
    return [worker._process.pid or 0 for worker in one._pool._workers]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def add_up(one: CohortEngine, clients: Sequence[int] = COHORT, *, round: int = 0) -> ShortenedSum:
    factors = partial(np.divide, 1.0)  # every contribution is scaled to the bound
    how = Shortening(bound=1.0, parts=None, factors=factors)
    return one.train_and_sum(one.model.initial(RANDOMNESS), clients, how, randomness=RANDOMNESS, round=round)


@pytest.mark.parametrize("threads", [2, 3])
def test_workers_add_up_to_the_same_bits(threads: int) -> None:
    one, alone = engine(threads), engine(1)
    for number in (0, 1):
        found, expected = add_up(one, round=number), add_up(alone, round=number)
        assert np.array_equal(found.total, expected.total)
        assert sorted(found.norms.tolist()) == sorted(expected.norms.tolist())
    assert not np.array_equal(add_up(alone, round=0).total, add_up(alone, round=1).total)
    before = pids(one)
    chunks = trained(one, MODEL.initial(RANDOMNESS), COHORT, round=0)
    total = sum(row / np.linalg.norm(row) for row in chunks.values())
    assert add_up(one).total == pytest.approx(total, abs=8 * 2.0**-18)
    assert pids(one) == before


@pytest.mark.parametrize("which", [0, 1])
def test_what_a_killed_worker_leaves_is_done_here(which: int) -> None:
    one = engine(2)
    expected = add_up(one).total
    before = pids(one)
    os.kill(before[which], signal.SIGKILL)
    assert eventually(lambda: not is_alive(before[which]))
    assert np.array_equal(add_up(one).total, expected)
    assert one._pool is None
    assert not any(map(is_alive, before))
    assert np.array_equal(add_up(one).total, expected)
    assert not set(pids(one)) & set(before)


def test_an_error_appears_as_if_there_were_no_workers() -> None:
    model = Model(Centred("in place"))
    with pytest.raises(ConfigError, match="carry one client's data to the next"):
        add_up(CohortEngine(model, clients(), Local(learning_rate=0.3, batch_size=4), Execution(threads=2)))


SCRIPT = """
from tests.learning.test_workers import *
one = engine(2)
add_up(one)
print(*pids(one), flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_workers_end_when_their_process_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        workers = list(map(int, process.stdout.readline().split()))
        assert len(workers) == 2
        assert all(map(is_alive, workers))
        process.kill()
    assert eventually(lambda: not any(map(is_alive, workers)))
