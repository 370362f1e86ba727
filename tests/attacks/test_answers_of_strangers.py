"""Malicious devices: answers that ruin a server's pool, its snapshot or its memory, or count for another or twice.

Whoever gains needs no account: every answer is anonymous, so each is looked at as if an attacker sent it, who knows the
server's code and what was drawn. What colluders gain who send honest sizes, and who fills the test's memory, is in
`tests/drawdiscard/test_residual_learnt.py`.
"""

import json
import math
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd import Server, Specification
from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.drawdiscard import Drawn, Reason
from incrowd.drawdiscard.desk import Returned
from incrowd.drawdiscard.kept_pool import FILE, REMEMBERED, SPECIFICATION, MemoryPool, packed
from incrowd.drawdiscard.pool import LARGEST
from incrowd.errors import ConfigError, DataError, IncrowdError
from tests.drawdiscard.mail import asked, held, honest

pytest.importorskip("pydantic")


SIZE = asked().size
SERVER = Server(asked(), randomness=SeededRandomness(seed=1))
TICKET = SERVER.draw().ticket


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
    before = held(SERVER)
    outcome = SERVER.offer(ODD[odd], TICKET)
    assert not outcome.accepted
    assert outcome.reason in (Reason.NOT_WEIGHTS, Reason.UNLIKE)
    assert held(SERVER)[0] == before[0]


def test_what_is_odd_about_them_was_why() -> None:
    """The control: honest answers of every plain kind of number are accepted."""
    for kind in (np.float64, np.float32, np.float16, list):
        server = Server(asked(), turned_away=1e-6)
        update, ticket = honest(server)
        plain: Any = update.tolist() if kind is list else update.astype(kind)
        assert server.offer(plain, ticket).reason is Reason.ACCEPTED
        assert server.accepted == 1


def test_an_answer_to_another_specification_of_equal_size_does_not_pass() -> None:
    server, other = Server(asked(), turned_away=1e-6), Server(asked(name="other"), turned_away=1e-6)
    assert other.specification.size == SIZE
    update, ticket = honest(server)
    assert other.offer(update, ticket).reason is Reason.OTHER_SPECIFICATION
    assert server.offer(update, ticket).reason is Reason.ACCEPTED


def test_no_ticket_can_be_made_or_changed_without_the_key() -> None:
    """One that names a version of the attacker's choice would be compared with that version."""
    server, twin = Server(asked(), turned_away=1e-6), Server(asked(), turned_away=1e-6)
    update, ticket = honest(server)
    changed = [
        ticket[:place] + bytes([ticket[place] ^ bit]) + ticket[place + 1 :]
        for place in range(len(ticket))
        for bit in (1, 128)
    ]
    for forged in (*changed, b"", ticket[:-1], ticket + b"x", twin.draw().ticket):
        assert server.offer(update, forged).reason in (Reason.FORGED, Reason.OTHER_SPECIFICATION)
    assert server.offer(update, ticket).reason is Reason.ACCEPTED, "the control"


def test_a_replay_counts_once_even_for_a_server_that_was_killed_and_is_opened_again(tmp_path: Path) -> None:
    server = Server(asked(), folder=tmp_path, turned_away=1e-6)
    update, ticket = honest(server)
    assert server.offer(update, ticket).reason is Reason.ACCEPTED
    before = held(server)
    assert {server.offer(update, ticket).reason for _ in range(50)} == {Reason.REPEATED}
    assert held(server) == before
    server.close()
    with Server.open(tmp_path) as again:
        assert again.offer(update.tolist(), ticket).reason is Reason.REPEATED
        assert again.accepted == 1
        other = np.nextafter(update, np.float32(0))
        assert again.offer(other, ticket).reason is not Reason.REPEATED, "one bit, and it is another"


def test_who_replays_without_being_known_owns_the_pool() -> None:
    """The control: a pool that remembers no answers is soon nothing but the one that is sent again and again."""
    server = Server(asked(merge=1.0))
    update, _ = honest(server)
    for _ in range(60):
        server._held.pool.discard(update)
    assert np.allclose(server.model().weights, update)


def test_an_answer_that_is_changed_after_it_was_looked_at_is_not_what_is_kept() -> None:
    server = Server(asked(merge=1.0), turned_away=1e-6)
    update, ticket = honest(server)
    held = update.copy()
    server.offer(update, ticket)
    update[:] = 1e6
    for drawn in (server.draw().weights, server._held.pool.draw()):
        with pytest.raises(ValueError, match="read-only"):
            drawn[:] = -1e6
    instances = server._held.pool.instances
    assert np.abs(instances).max() < 1e3
    assert any(np.array_equal(held, row) for row in instances)


def told(folder: Path, **changes: Any) -> None:
    """Change what the file says of the pool."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        (content,) = database.execute("SELECT content FROM state WHERE name = 'pool'").fetchone()
        database.execute(
            "UPDATE state SET content = ? WHERE name = 'pool'", (json.dumps({**json.loads(content), **changes}),)
        )


def state(folder: Path, name: str, content: bytes) -> None:
    """Change another part of the file."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("UPDATE state SET content = ? WHERE name = ?", (content, name))


def row(folder: Path, weights: Any) -> None:
    """Change an instance in the file."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("UPDATE rows SET weights = ? WHERE version = 0", (np.asarray(weights).tobytes(),))


TAMPERED: dict[str, Callable[[Path], None]] = {
    "another size": lambda folder: row(folder, np.zeros(9, np.float32)),
    "double precision": lambda folder: row(folder, np.zeros(SIZE)),
    "not finite": lambda folder: row(folder, np.full(SIZE, np.nan, np.float32)),
    "no whole number of weights": lambda folder: row(folder, np.zeros(3, np.uint8)),
    "another number of instances": lambda folder: told(folder, versions=[0, 1]),
    "a version twice": lambda folder: told(folder, versions=[0, 1, 2, 2]),
    "a version that is not there": lambda folder: told(folder, versions=[0, 1, 2, 99]),
    "negative counts": lambda folder: told(folder, counts=[-1, 0, 0]),
    "too few counts": lambda folder: told(folder, counts=[0]),
    "a test that learnt something else": lambda folder: state(folder, "test", packed({"other": np.zeros(2)})),
    "a test that is none": lambda folder: state(folder, "test", b"x"),
    "another specification": lambda folder: state(folder, "specification", b"{}"),
    "no pool": lambda folder: state(folder, "pool", b"x"),
    "a short key": lambda folder: state(folder, "key", b"x"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_file_that_was_tampered_with_is_refused(tmp_path: Path, how: str) -> None:
    Server(asked(), folder=tmp_path).close()
    Server(asked(), folder=tmp_path).close()  # the control: as it was
    TAMPERED[how](tmp_path)
    with pytest.raises((DataError, ConfigError)):
        Server(asked(), folder=tmp_path)


@pytest.mark.slow
def test_no_part_of_a_file_that_is_missing_goes_unnoticed(tmp_path: Path) -> None:
    Server(asked(), folder=tmp_path).close()
    content = (tmp_path / FILE).read_bytes()
    for length in range(0, len(content), len(content) // 40):
        (tmp_path / FILE).write_bytes(content[:length])
        with pytest.raises(IncrowdError):
            Server.open(tmp_path)


def test_a_specification_that_was_exchanged_does_not_get_the_pool(tmp_path: Path) -> None:
    """Otherwise a louder promise than the one that was learnt under, say, could be printed over the same weights."""
    Server(asked(), folder=tmp_path).close()
    stated = json.loads((tmp_path / SPECIFICATION).read_text())
    (tmp_path / SPECIFICATION).write_text(json.dumps({**stated, "epsilon": 0.1}))
    with pytest.raises(ConfigError, match="another specification"):
        Server.open(tmp_path)


@pytest.mark.slow
def test_thousands_of_answers_later_it_still_counts_once() -> None:
    own = Server(asked(instances=2), turned_away=1e-9, history=2 * REMEMBERED)
    first = honest(own, seed=0)
    assert own.offer(*first).reason is Reason.ACCEPTED
    for number in range(REMEMBERED + 1):
        assert own.offer(*honest(own, seed=1 + number)).accepted
    assert own.offer(*first).reason is Reason.REPEATED
    assert own.accepted == REMEMBERED + 2


def test_under_the_next_minutes_ticket_it_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Server(asked(instances=1), turned_away=1e-9)
    drawn = own.draw()
    later = time.time() + 60
    monkeypatch.setattr("time.time", lambda: later)
    again = own.draw()
    assert np.array_equal(drawn.weights, again.weights)
    assert drawn.ticket != again.ticket, "the control: the same version, another ticket"
    update, _ = honest(own)
    assert own.offer(update, drawn.ticket).reason is Reason.ACCEPTED
    assert own.offer(update, again.ticket).reason is Reason.REPEATED
    assert own.accepted == 1


def test_another_answer_to_the_same_version_counts() -> None:
    """The control: what tells answers apart is what is in them."""
    own = Server(asked(instances=1), turned_away=1e-9)
    drawn = own.draw()
    updates = [honest(own, seed=number)[0] for number in range(3)]
    assert [own.offer(update, drawn.ticket).reason for update in updates] == [Reason.ACCEPTED] * 3


def accepted(pool: MemoryPool, numbers: range) -> list[int]:
    """The versions that these answers make, as devices may draw them."""
    made = []
    for number in numbers:
        version, row = pool.pool.draw_version()
        answer = pool.desk.read(row + 1 + number, pool.desk.hand_out(version, row, accepted=0).ticket)
        assert isinstance(answer, Returned)
        pool.enter(answer)
        made.append(max(pool.pool.state().versions))
    return made


def life(folder: Path, turn: int, *, clean: bool) -> list[int]:
    """A server that begins, accepts a few answers, and is killed before it keeps them, or ends as it should."""
    pool = MemoryPool(asked(), folder=folder)
    pool.write(pool.snapshot(), clean=False)
    made = accepted(pool, range(5 * turn, 5 * turn + 5))
    if clean:
        pool.write(pool.snapshot(), clean=True)
    pool.close()
    return made


@pytest.mark.parametrize("clean", [False, True])
def test_no_two_rows_ever_have_one_number(tmp_path: Path, clean: bool) -> None:
    """The control is a server that always ends as it should."""
    made = [version for turn in range(4) for version in life(tmp_path / "own", turn, clean=clean)]
    assert len(set(made)) == len(made)


Row = NDArray[np.float32]
FIELDS = {f"f{number}": {"type": "number", "low": 0.0, "high": 1.0} for number in range(200)} | {
    "y": {"type": "boolean"}
}


def wide(**changed: object) -> Specification:
    """A logistic regression of 201 weights, per feature."""
    keys: dict[str, object] = {
        "name": "attacked",
        "fields": FIELDS,
        "response": "y",
        "terms": [[f"f{number}"] for number in range(200)],
    }
    keys |= {"link": "logistic", "gamma": 0.03, "clip": 0.1, "epsilon": math.log(32), "privacy": "feature"}
    keys |= {"instances": 10, "merge": 1.0}
    return Specification.of(keys | changed)


def unit(server: Server) -> float:
    """The scale of the noise of an answer."""
    return server.specification.gamma * server.specification.mechanism.noise_scale


def noise_alone(drawn: Drawn, scale: float, stream: Stream) -> Row:
    """Noise alone."""
    return (drawn.weights + scale * stream.laplaces(len(drawn.weights))).astype(np.float32)


def let_in(server: Server, make: Callable[[Drawn], Row], count: int) -> float:
    """The share of so many answers that are let in, each to a draw of its own."""
    accepted = 0
    for _ in range(count):
        drawn = server.draw()
        accepted += server.offer(make(drawn), drawn.ticket).accepted
    return accepted / count


def fresh(**changed: object) -> tuple[Server, Stream]:
    randomness = SeededRandomness(11)
    return Server(wide(**changed), randomness=randomness), randomness.stream("attackers")


FORGED: dict[str, Callable[[Server, Drawn, float], NDArray[Any]]] = {
    "a replay": lambda _, drawn, _scale: drawn.weights,
    "nearly a replay": lambda _, drawn, scale: drawn.weights + 1e-3 * scale,
    "one weight": lambda _, drawn, scale: drawn.weights + scale * np.eye(len(drawn.weights))[3] * 30,
    "a shift": lambda _, drawn, scale: drawn.weights + 3.5 * scale,
    "flipped": lambda _, drawn, scale: -drawn.weights + scale,
    "far": lambda _, drawn, _scale: 1e6 - drawn.weights,
    "huge": lambda _, drawn, _scale: np.where(np.arange(len(drawn.weights)) == 0, 1e29, drawn.weights),
    # accepted 99 times in 100 by a band round the pool, and ruinous: the mean of ten draws and half a band
    "within a band": lambda server, _, scale: mean_of_ten(server) + 0.5 * 4 * math.sqrt(2 * 10 / 2 + 2) * scale,
}


def mean_of_ten(server: Server) -> Floats:
    return np.asarray(np.mean([server.draw().weights for _ in range(10)], axis=0))


@pytest.mark.parametrize("kind", FORGED)
def test_an_answer_without_honest_noise_is_turned_away(kind: str) -> None:
    server, stream = fresh()
    scale = unit(server)
    assert let_in(server, lambda drawn: np.asarray(FORGED[kind](server, drawn, scale), np.float32), 50) == 0
    assert let_in(server, lambda drawn: noise_alone(drawn, scale, stream), 100) > 0.95


def test_an_instance_drawn_long_ago_does_not_come_back_under_a_new_ticket() -> None:
    server, stream = fresh()
    scale, old = unit(server), server.draw()
    let_in(server, lambda drawn: noise_alone(drawn, scale, stream), 150)
    replayed = [(old.weights + scale * stream.laplaces(len(old.weights))).astype(np.float32) for _ in range(20)]
    fresh_tickets = [server.draw() for _ in range(20)]
    said = {server.offer(row, drawn.ticket).reason for row, drawn in zip(replayed, fresh_tickets, strict=True)}
    assert said == {Reason.UNLIKE}
    assert server.offer(replayed[0], old.ticket).reason in (Reason.ACCEPTED, Reason.LATE)  # as a late device's


def test_a_ticket_of_other_steps_does_not_fit_an_answer() -> None:
    """An answer with the noise of a larger gamma, sent when gamma has fallen."""
    server, stream = fresh(falls_every=50, falls_by=1.0)
    scale = unit(server)
    early = server.draw()
    let_in(server, lambda drawn: noise_alone(drawn, scale / (1 + server.accepted // 50), stream), 120)
    late = server.draw()
    assert late.gamma < early.gamma
    assert server.offer(noise_alone(late, scale, stream), late.ticket).reason is Reason.UNLIKE
    assert server.offer(
        noise_alone(late, scale * late.gamma / early.gamma, stream), late.ticket
    ).accepted  # the control
