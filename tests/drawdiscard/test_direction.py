"""Answers that are directions: which are, and what else somebody may send."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from incrowd import SeededRandomness, Server
from incrowd.drawdiscard import Reason
from incrowd.drawdiscard.desk import MARK_BYTES, Outcome
from incrowd.drawdiscard.device import stepped
from incrowd.drawdiscard.spam import LATEST_SEEDS, DirectionTest
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.whole_noise import ChosenDirection, most_along
from tests.drawdiscard.mail import FIELDS, asked, phone

Row = NDArray[np.float32]
SIZE, GAMMA = 120, 0.3
MECHANISM = Mechanism(size=SIZE, clip=1.0, epsilon=4.0, noise="direction", bound="norm")
ASKED = {"noise": "direction", "bound": "norm", "largest": None, "gamma": 1.0, "clip": 1.0}


def answer(choice: ChosenDirection, parent: Row, seed: int, gamma: float) -> Row:
    """What an honest device sends."""
    return stepped(parent, Whole(choice.steps_of(seed), choice.step), gamma=gamma)


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 150), seed=st.integers(0, 2**20 - 1), gamma=st.floats(1e-3, 100), weights=st.floats(1e-9, 1e2),
    epsilon=st.floats(0.1, 12), number=st.integers(0, 2**32),
)  # fmt: skip
def test_every_honest_answer_passes_and_no_neighbour_of_it(
    size: int, seed: int, gamma: float, weights: float, epsilon: float, number: int
) -> None:
    mechanism = Mechanism(size=size, clip=1.0, epsilon=epsilon, noise="direction", bound="norm")
    draw = np.random.default_rng(number)
    parent = (weights * draw.normal(size=size)).astype(np.float32)
    sent = answer(mechanism.choice, parent, seed % 2 ** min(size, 20), gamma)
    test = DirectionTest(mechanism)
    assert test.accepts(sent, parent, gamma)
    length = (gamma * mechanism.choice.step) * mechanism.choice.length
    other = sent.copy()
    place = int(draw.integers(size))
    other[place] = np.nextafter(other[place], np.float32(np.inf))
    turned = sent.copy()
    turned[place] = np.float32(np.float64(parent[place]) + math.copysign(length, float(parent[place] - sent[place])))
    assert not test.accepts(other, parent, gamma)
    if size > 60 and place >= 20:  # of so few signs every one is a direction's
        assert not test.accepts(turned, parent, gamma)


def _further(parent: Row, sign: float) -> Row:
    """An honest answer, but for later weights that it moves one way: they go three steps."""
    honest = answer(MECHANISM.choice, parent, 5, GAMMA)
    far = answer(MECHANISM.choice, parent, 5, 3 * GAMMA)
    return np.where((sign * (honest - parent) > 0) & (np.arange(SIZE) >= 20), far, honest).astype(np.float32)


ATTACKS: dict[str, Callable[[Row, np.random.Generator], Row]] = {
    "nothing": lambda parent, _: parent,
    "Laplace noise": lambda parent, draw: (parent + 0.03 * draw.laplace(size=SIZE)).astype(np.float32),
    "signs of its own": lambda parent, draw: (
        parent + GAMMA * MECHANISM.noise_scale * draw.choice([-1.0, 1.0], SIZE)
    ).astype(np.float32),
    "all one way": lambda parent, _: (parent - GAMMA * MECHANISM.noise_scale).astype(np.float32),
    "one weight": lambda parent, _: np.where(np.arange(SIZE) == 7, parent + 1, parent).astype(np.float32),
    "twice the length": lambda parent, _: answer(MECHANISM.choice, parent, 5, 2 * GAMMA),
    "further, where it rises": lambda parent, _: _further(parent, 1.0),
    "further, where it falls": lambda parent, _: _further(parent, -1.0),
    "half the length": lambda parent, _: answer(MECHANISM.choice, parent, 5, GAMMA / 2),
    "a huge weight": lambda parent, _: np.where(np.arange(SIZE) == 7, np.float32(3e38), parent).astype(np.float32),
    "no number": lambda parent, _: np.where(np.arange(SIZE) == 7, np.float32(np.nan), parent).astype(np.float32),
    "infinity": lambda _, __: np.full(SIZE, -np.inf, np.float32),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_whatever_is_no_direction_is_turned_away(attack: str) -> None:
    draw, test = np.random.default_rng(1), DirectionTest(MECHANISM)
    for _ in range(50):
        parent = draw.normal(size=SIZE).astype(np.float32)
        assert not test.accepts(ATTACKS[attack](parent, draw), parent, GAMMA)
        assert test.accepts(answer(MECHANISM.choice, parent, int(draw.integers(2**20)), GAMMA), parent, GAMMA)


def test_a_direction_may_come_up_as_often_as_honest_devices_make_it_and_no_more() -> None:
    parent, test = np.zeros(SIZE, np.float32), DirectionTest(MECHANISM)
    same = answer(MECHANISM.choice, parent, 77, GAMMA)
    said = [test.accepts(same, parent, GAMMA) for _ in range(20)]
    assert sum(said) == test.most <= 3
    others = (answer(MECHANISM.choice, parent, seed, GAMMA) for seed in range(1_000, 1_000 + LATEST_SEEDS + 200))
    assert sum(test.accepts(other, parent, GAMMA) for other in others) > 0.95 * LATEST_SEEDS
    assert test.accepts(same, parent, GAMMA), "it is forgotten in the end"
    few = Mechanism(size=3, clip=1.0, epsilon=2.0, noise="direction", bound="norm")
    assert DirectionTest(few).most > LATEST_SEEDS / 3, "of three weights there are eight directions"


@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])
def test_honest_devices_are_hardly_ever_turned_away_however_alike_they_are(alike: float) -> None:
    """Also where all have the same gradient, of which one direction in a hundred is most along at all."""
    draw, count = np.random.default_rng(9), 2_000
    mechanism = Mechanism(size=60, clip=1.0, epsilon=6.0, noise="direction", bound="norm")
    test, parent = DirectionTest(mechanism, randomness=SeededRandomness(3)), np.zeros(60, np.float32)
    shared, choice, away = draw.normal(size=60), mechanism.choice, 0
    for _ in range(count):
        gradient = alike * shared + (1 - alike) * draw.normal(size=60)
        seeds = draw.integers(0, 2**20, choice.candidates)
        best = most_along(seeds, choice.bounded(gradient).astype(np.float64))
        other = int(draw.integers(len(seeds)))
        named = int(seeds[best if draw.random() < choice.honest else other])
        away += not test.accepts(answer(choice, parent, named, GAMMA), parent, GAMMA)
    assert away / count < 0.01 + 4 * math.sqrt(0.01 / count)


@pytest.mark.slow
def test_colluders_who_go_one_way_are_turned_away_once_that_is_known() -> None:
    draw, parent = np.random.default_rng(10), np.zeros(SIZE, np.float32)
    test = DirectionTest(MECHANISM, randomness=SeededRandomness(4))
    wanted = draw.normal(size=SIZE)
    wanted /= np.linalg.norm(wanted)
    said: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(2_500):
        bad = bool(draw.random() < 0.2)
        seeds = draw.integers(0, 2**20, 2**12 if bad else 1)
        seed = int(seeds[most_along(seeds, wanted)])
        said[bad].append(test.accepts(answer(MECHANISM.choice, parent, seed, GAMMA), parent, GAMMA))
    assert np.mean(said[True][:50]) == 1.0, "nothing is known yet"
    assert np.mean(said[True][-250:]) < 0.9
    assert np.mean(said[False][-1_000:]) > 0.98


def test_a_server_takes_directions_and_goes_on_with_them(tmp_path: Path) -> None:
    fields = FIELDS | {"sender": {"type": "hashed", "buckets": 100}}
    server, device = Server(asked(**ASKED | {"fields": fields}), folder=tmp_path / "mail"), phone()
    for _ in range(20):
        assert device.contribute(server).accepted
    drawn = server.draw()
    wrong = (drawn.weights + np.float32(0.1)).astype(np.float32)
    assert server.offer(wrong, drawn.ticket).reason is Reason.UNLIKE
    server.close()
    with Server.open(tmp_path / "mail") as again:
        assert again.accepted == 20
        assert device.contribute(again).accepted
    device.close()


@pytest.mark.slow
def test_no_honest_answer_is_lost_because_another_device_named_the_same() -> None:
    """Each is paid for, and what many agree on would be lost most often."""
    server, device = Server(asked(**ASKED | {"epsilon": 8.0, "instances": 20})), phone()
    outcomes = [device.contribute(server).reason for _ in range(200)]
    assert server.accepted == 200 == outcomes.count(Reason.ACCEPTED)
    unmarked = Server(asked(**ASKED | {"epsilon": 8.0, "instances": 20}))
    for _ in range(200):
        drawn = unmarked.draw()
        unmarked.offer(device.answer(unmarked.specification_json(), drawn.weights, drawn.gamma), drawn.ticket)
    assert unmarked.accepted < 190, "the control: the same directions come up from the same versions"


def test_a_copy_of_an_answer_with_noise_is_a_copy_whatever_its_mark() -> None:
    server = Server(asked(instances=1), turned_away=1e-9)
    drawn = server.draw()
    device = phone()
    own = device.answer(server.specification_json(), drawn.weights, drawn.gamma)
    assert server.offer(own, drawn.ticket).reason is Reason.ACCEPTED
    assert server.offer(own, drawn.ticket + MARK_BYTES * b"m").reason is Reason.REPEATED


def test_what_is_sent_again_keeps_its_mark() -> None:
    class Deaf:
        """A server whose replies are lost."""

        def __init__(self, server: Server) -> None:
            self.server, self.tickets, self.deaf = server, list[bytes](), True
            self.specification_json, self.draw = server.specification_json, server.draw

        def offer(self, update: ArrayLike, ticket: bytes) -> Outcome:
            self.tickets.append(ticket)
            outcome = self.server.offer(update, ticket)
            if self.deaf:
                raise TimeoutError
            return outcome

    server, device = Deaf(Server(asked(**ASKED))), phone()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            device.contribute(server)
    server.deaf = False
    assert device.contribute(server).reason is Reason.REPEATED
    assert len(set(server.tickets)) == 1
    assert server.server.accepted == 1
    assert device.contribute(server).reason is Reason.ACCEPTED
    assert len({ticket[-MARK_BYTES:] for ticket in server.tickets}) == 2
