"""Attackers who send answers to a draw-and-discard server: each knows its code and what they drew, and many collude."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.drawdiscard import Drawn, Reason, ResidualTest, Server, Specification
from incrowd.drawdiscard.spam import MEMORY, REMEMBERED_EVERY

Row = NDArray[np.float32]
FIELDS = {f"f{number}": {"type": "number", "low": 0.0, "high": 1.0} for number in range(200)} | {
    "y": {"type": "boolean"}
}


def asked(**changed: object) -> Specification:
    """A logistic regression of 201 weights, per feature."""
    keys = {
        "name": "attacked",
        "fields": FIELDS,
        "response": "y",
        "terms": [[f"f{number}"] for number in range(200)],
        "link": "logistic",
        "gamma": 0.03,
        "clip": 0.1,
        "epsilon": math.log(32),
        "privacy": "feature",
        "instances": 10,
        "merge": 1.0,
    }
    return Specification.of(keys | changed)


def unit(server: Server) -> float:
    """The scale of the noise of an answer."""
    return server.specification.gamma * server.specification.mechanism.noise_scale


def honest(drawn: Drawn, scale: float, stream: Stream) -> Row:
    """Noise alone."""
    return (drawn.weights + scale * stream.laplaces(len(drawn.weights))).astype(np.float32)


def offered(server: Server, make: Callable[[Drawn], Row], count: int) -> float:
    """The share of so many answers that are let in, each to a draw of its own."""
    accepted = 0
    for _ in range(count):
        drawn = server.draw()
        accepted += server.offer(make(drawn), drawn.ticket).accepted
    return accepted / count


def mean_spread(server: Server) -> tuple[float, float]:
    """How far the average weight is from 0, and how far the instances are from each other."""
    instances = server._held.pool.instances
    return float(np.abs(instances.mean(axis=0)).mean()), float(instances.std(axis=0).mean())


def fresh(**changed: object) -> tuple[Server, Stream]:
    randomness = SeededRandomness(11)
    return Server(asked(**changed), randomness=randomness), randomness.stream("attackers")


def test_what_the_old_band_let_through_is_turned_away() -> None:
    """The mean of ten draws plus half a band: accepted 99 times in 100 by a band round the pool, and ruinous."""
    server, stream = fresh()
    scale = unit(server)
    offered(server, lambda drawn: honest(drawn, scale, stream), 100)

    def forged(_drawn: Drawn) -> Row:
        mean = np.mean([server.draw().weights for _ in range(10)], axis=0)
        return np.asarray(mean + 0.5 * 4 * math.sqrt(2 * 10 / 2 + 2) * scale, np.float32)

    before = mean_spread(server)
    assert offered(server, forged, 200) == 0
    assert mean_spread(server) == before
    assert offered(server, lambda drawn: honest(drawn, scale, stream), 200) > 0.95  # the control


@pytest.mark.parametrize(
    "forge",
    [
        lambda drawn, _scale: drawn.weights,
        lambda drawn, scale: drawn.weights + 1e-3 * scale,
        lambda drawn, scale: drawn.weights + scale * np.eye(len(drawn.weights))[3] * 30,
        lambda drawn, scale: drawn.weights + 3.5 * scale,
        lambda drawn, scale: -drawn.weights + scale,
        lambda drawn, _scale: 1e6 - drawn.weights,
        lambda drawn, _scale: np.where(np.arange(len(drawn.weights)) == 0, 1e29, drawn.weights),
    ],
    ids=["replay", "nearly a replay", "one weight", "shift", "flipped", "far", "huge"],
)
def test_an_answer_without_honest_noise_is_turned_away(forge: Callable[[Drawn, float], Floats]) -> None:
    server, stream = fresh()
    scale = unit(server)
    assert offered(server, lambda drawn: np.asarray(forge(drawn, scale), np.float32), 50) == 0
    assert offered(server, lambda drawn: honest(drawn, scale, stream), 100) > 0.95


def test_an_instance_drawn_long_ago_does_not_come_back_under_a_new_ticket() -> None:
    server, stream = fresh()
    scale, old = unit(server), server.draw()
    offered(server, lambda drawn: honest(drawn, scale, stream), 150)
    replayed = [(old.weights + scale * stream.laplaces(len(old.weights))).astype(np.float32) for _ in range(20)]
    fresh_tickets = [server.draw() for _ in range(20)]
    said = {server.offer(row, drawn.ticket).reason for row, drawn in zip(replayed, fresh_tickets, strict=True)}
    assert said == {Reason.UNLIKE}
    assert server.offer(replayed[0], old.ticket).reason in (Reason.ACCEPTED, Reason.LATE)  # as a late device's


@pytest.mark.slow
def test_colluders_who_send_honest_sizes_gain_little_behind_what_is_learnt() -> None:
    moved = {}
    for name in ("learns", "fixed"):
        server, stream = fresh()
        if name == "fixed":
            server._held.desk.test = ResidualTest(server.specification.mechanism, learns=False)
        scale, coins = unit(server), stream.bits(6_000) % np.uint64(5)
        for coin in coins:
            drawn = server.draw()
            noise = scale * stream.laplaces(len(drawn.weights))
            sent = drawn.weights + (np.abs(noise) if coin == 0 else noise - 0.3 * scale * np.sign(drawn.weights))
            server.offer(sent.astype(np.float32), drawn.ticket)
        moved[name] = float(server._held.pool.instances.mean()) / scale
    assert moved["fixed"] > 3 * moved["learns"]  # the control: they pull the model along without what is learnt


def test_who_comes_first_decides_nothing_for_those_who_come_later() -> None:
    server, stream = fresh()
    scale, size = unit(server), server.specification.size
    first = 2 * MEMORY
    offered(server, lambda drawn: (drawn.weights + 0.85 * scale * stream.laplaces(size)).astype(np.float32), first)
    assert offered(server, lambda drawn: honest(drawn, scale, stream), 1_000) > 0.97
    longer = 0.6 * scale  # a step of all devices, well within the clip

    def stepping(drawn: Drawn) -> Row:
        return (honest(drawn, scale, stream) + longer).astype(np.float32)

    offered(server, stepping, MEMORY * REMEMBERED_EVERY)
    assert offered(server, stepping, 500) > 0.97


def test_a_ticket_of_other_steps_does_not_fit_an_answer() -> None:
    """An answer with the noise of a larger gamma, sent when gamma has fallen."""
    server, stream = fresh(falls_every=50, falls_by=1.0)
    scale = unit(server)
    early = server.draw()
    offered(server, lambda drawn: honest(drawn, scale / (1 + server.accepted // 50), stream), 120)
    late = server.draw()
    assert late.gamma < early.gamma
    assert server.offer(honest(late, scale, stream), late.ticket).reason is Reason.UNLIKE
    assert server.offer(honest(late, scale * late.gamma / early.gamma, stream), late.ticket).accepted  # the control
