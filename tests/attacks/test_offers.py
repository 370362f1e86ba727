"""Attack: an answer that ruins a server's pool, its snapshot or its memory, or that counts for another or twice.

Whoever gains from it needs no account: every answer is anonymous, so each one is looked at as if an attacker sent it.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from incrowd import SeededRandomness, Server
from incrowd._random import Floats
from incrowd.drawdiscard import Reason
from incrowd.drawdiscard.pool import LARGEST, Pool, Snapshot
from incrowd.drawdiscard.server import POOL, SPECIFICATION
from incrowd.errors import ConfigError, DataError, IncrowdError
from tests.drawdiscard.mail import asked

SIZE = asked().size
SERVER = Server(asked(), randomness=SeededRandomness(seed=1))
PRINT = SERVER.specification.fingerprint


def honest(server: Server, seed: int = 0) -> Floats:
    noise = SeededRandomness(seed=seed).stream("noise").laplaces(SIZE)
    scale = server.specification.gamma * server.specification.mechanism.noise_scale
    drawn: Floats = server.draw().weights + scale * noise
    return drawn


ODD: dict[str, Any] = {
    "NaN": np.full(SIZE, np.nan),
    "one NaN": np.where(np.arange(SIZE) == 1, np.nan, 0.0),
    "infinite": np.full(SIZE, -np.inf),
    "beyond squares": np.full(SIZE, 1e308),
    "beyond float64": np.full(SIZE, np.longdouble("1e4000")),
    "one huge number": np.where(np.arange(SIZE) == 0, LARGEST, 0.0),
    "too short": np.zeros(SIZE - 1),
    "too long": np.zeros(SIZE + 1),
    "a scalar": 0.0,
    "nothing": None,
    "an empty list": [],
    "a column": np.zeros((SIZE, 1)),
    "a row of a matrix": np.zeros((1, SIZE)),
    "a view of terabytes": np.broadcast_to(np.zeros(SIZE), (1 << 40, SIZE)),
    "complex": np.zeros(SIZE, complex),
    "truth values": np.zeros(SIZE, bool),
    "text": ["0"] * SIZE,
    "bytes": b"\x00" * 8 * SIZE,
    "objects": np.array([0.0] * SIZE, dtype=object),
    "whole numbers beyond all": [10**400] * SIZE,
    "uneven": [[0.0], [0.0, 1.0]],
    "a dict": {"weights": [0.0] * SIZE},
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # long doubles that no float64 holds
@pytest.mark.parametrize("odd", ODD)
def test_no_odd_answer_changes_anything(odd: str) -> None:
    before = SERVER.snapshot().instances
    outcome = SERVER.offer(ODD[odd], PRINT)
    assert not outcome.accepted
    assert outcome.reason in (Reason.NOT_WEIGHTS, Reason.FAR)
    assert np.array_equal(before, SERVER.snapshot().instances)


def test_what_is_odd_about_them_was_why() -> None:
    """The control: honest answers of every plain kind of number are accepted."""
    for kind in (np.float64, np.float32, np.float16, list):
        server = Server(asked(), turned_away=1e-6)
        update = honest(server)
        plain: Any = update.tolist() if kind is list else update.astype(kind)
        assert server.offer(plain, PRINT).reason is Reason.ACCEPTED
        assert server.accepted == 1


class Trusting(Pool):
    """The broken twin: a pool that takes whatever is finite, and updates mean and spread as it goes along."""

    def take(self, arrived: Floats) -> None:
        row = self._instances[0]
        change, distances = arrived - row, arrived + row - self._mean
        self._mean += change / self.k
        distances -= self._mean
        self._squares += change * distances
        row[:] = arrived


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_one_huge_answer_poisons_a_trusting_pool_for_good_and_none_poisons_ours() -> None:
    start = SeededRandomness(seed=1).stream("start").normals(4 * SIZE).reshape(4, SIZE)
    trusting, ours = (kind(start, randomness=SeededRandomness(seed=1)) for kind in (Trusting, Pool))
    huge = np.full(SIZE, 1e200)
    assert isinstance(trusting, Trusting)
    trusting.take(huge)
    trusting.take(start[0])
    assert not np.isfinite(trusting.mean_and_spread()[1]).all()
    with pytest.raises(DataError):
        Snapshot.from_bytes(trusting.snapshot().to_bytes())
    with pytest.raises(DataError):
        ours.replace(0, huge)
    ours.replace(0, np.full(SIZE, LARGEST))
    ours.replace(0, start[0])
    assert np.allclose(ours.mean_and_spread()[1], start.std(axis=0, ddof=1))
    Snapshot.from_bytes(ours.snapshot().to_bytes())


@given(st.lists(st.floats(width=64), min_size=SIZE, max_size=SIZE))
def test_whatever_is_offered_the_pool_stays_readable(numbers: list[float]) -> None:
    SERVER.offer(numbers, PRINT)
    again = Snapshot.from_bytes(SERVER.snapshot().to_bytes())
    assert np.isfinite(again.mean).all()
    assert np.isfinite(SERVER.model().weights).all()


@pytest.mark.parametrize("fingerprint", ["", "0" * 64, asked(name="other").fingerprint, None, 7, b"", PRINT.upper()])
def test_an_answer_to_another_specification_of_equal_size_does_not_pass(fingerprint: Any) -> None:
    server = Server(asked(), turned_away=1e-6)
    assert asked(name="other").size == SIZE
    update = honest(server)
    assert server.offer(update, fingerprint).reason is Reason.OTHER_SPECIFICATION
    assert server.offer(update, PRINT).reason is Reason.ACCEPTED


def test_a_replay_counts_once_even_for_a_server_that_was_killed_and_is_opened_again(tmp_path: Path) -> None:
    server = Server(asked(), folder=tmp_path, turned_away=1e-6)
    update = honest(server)
    assert server.offer(update, PRINT).reason is Reason.ACCEPTED
    before = server.snapshot().to_bytes()
    assert {server.offer(update, PRINT).reason for _ in range(50)} == {Reason.REPEATED}
    assert server.snapshot().to_bytes() == before
    server.close()
    with Server.open(tmp_path) as again:
        assert again.offer(update.tolist(), PRINT).reason is Reason.REPEATED
        assert again.accepted == 1
        assert again.offer(np.nextafter(update, 0), PRINT).reason is not Reason.REPEATED, "one bit, and it is another"


def test_who_replays_without_being_known_owns_the_pool() -> None:
    """The control: a pool that remembers no answers is soon nothing but the one that is sent again and again."""
    server = Server(asked())
    update = honest(server)
    for _ in range(60):
        server._pool.discard(update)
    assert np.allclose(server.model().weights, update)


def test_an_answer_that_is_changed_after_it_was_looked_at_is_not_what_is_kept() -> None:
    server = Server(asked(), turned_away=1e-6)
    update = honest(server)
    held = update.copy()
    server.offer(update, PRINT)
    update[:] = 1e6
    drawn = server.draw().weights
    drawn[:] = -1e6
    instances = server.snapshot().instances
    assert np.abs(instances).max() < 1e3
    assert any(np.array_equal(held, row) for row in instances)


def tampered(content: bytes, **changes: Any) -> bytes:
    return bytes(save({**load(content), **changes}))


TAMPERED: dict[str, Any] = {
    "another size": {
        "instances": np.zeros((4, 9)),
        "mean": np.zeros(9),
        "squares": np.zeros(9),
        "remembered": np.zeros(9),
    },
    "another number of instances": {"instances": np.zeros((5, SIZE))},
    "not finite": {"instances": np.full((4, SIZE), np.nan)},
    "huge": {"instances": np.full((4, SIZE), 1e200)},
    "single precision": {"mean": np.zeros(SIZE, np.float32)},
    "a mean of other weights": {"mean": np.zeros(SIZE + 1)},
    "negative counts": {"counts": np.array([-1, 0, 0, 0])},
    "too few counts": {"counts": np.array([0])},
    "an unknown array": {"code": np.zeros(SIZE)},
    "another specification": {"specification": np.zeros(32, np.uint8)},
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_snapshot_that_was_exchanged_is_refused(tmp_path: Path, how: str) -> None:
    Server(asked(), folder=tmp_path).close()
    content = (tmp_path / POOL).read_bytes()
    (tmp_path / POOL).write_bytes(tampered(content, **TAMPERED[how]))
    with pytest.raises((DataError, ConfigError)):
        Server(asked(), folder=tmp_path)
    (tmp_path / POOL).write_bytes(tampered(content))
    Server(asked(), folder=tmp_path).close()  # the control: written by the same hand, but as it was


def test_no_part_of_a_snapshot_that_is_missing_goes_unnoticed(tmp_path: Path) -> None:
    Server(asked(), folder=tmp_path).close()
    content = (tmp_path / POOL).read_bytes()
    for length in range(0, len(content), 7):
        (tmp_path / POOL).write_bytes(content[:length])
        with pytest.raises(IncrowdError):
            Server.open(tmp_path)


def test_a_specification_that_was_exchanged_does_not_get_the_pool(tmp_path: Path) -> None:
    """Otherwise a louder promise than the one that was learnt under, say, could be printed over the same weights."""
    Server(asked(), folder=tmp_path).close()
    stated = json.loads((tmp_path / SPECIFICATION).read_text())
    (tmp_path / SPECIFICATION).write_text(json.dumps({**stated, "epsilon": 0.1}))
    with pytest.raises(ConfigError, match="another specification"):
        Server.open(tmp_path)
