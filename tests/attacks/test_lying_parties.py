"""A party that is enrolled, and not honest: what it sends counts as zero, and keeps no honest one from counting."""

import math
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message

from incrowd._random import Integers
from incrowd.errors import DataError
from incrowd.flower.grid import PIECE, GridLink, pack, unpack
from incrowd.learning import CohortEngine
from incrowd.parties.asking import Patience
from incrowd.parties.contribution import alone
from incrowd.parties.frames import PartyAnswer, Place, Request, decoded, longest_answer, read_answer, sealed
from incrowd.parties.network import Network, Node
from incrowd.parties.offer import Offer, RoundTask
from incrowd.settings import Local
from tests.parties.nodes import PlainLine, VirtualClock
from tests.parties.parties import (
    CLIP,
    KEYS,
    MODEL,
    NAMES,
    SERVER,
    Made,
    asked,
    network_of,
    offer_for,
    own,
    plan_of,
    zeros,
)

pytestmark = pytest.mark.watched

SIZE = MODEL.size


OFFER = offer_for(plan_of())


HERE = Place(plan=OFFER.fingerprint, round=2, party="north")


WIDE = RoundTask.stated(OFFER, 2, CLIP).expected(HERE, contributions=1).wide


def honest(place: Place, value: int = 1) -> bytes:
    steps = np.full(SIZE, value, np.int64)
    return PartyAnswer(place=place, steps=steps, unclipped=0).to_bytes(KEYS[place.party], wide=WIDE)


def odd(body: bytes, **head: Any) -> bytes:
    """What a party signs that says what it likes."""
    return sealed("answer", HERE, {"unclipped": 0, **head}, body, key=KEYS["north"])


def floats(value: float) -> bytes:
    return np.full(SIZE, value, f"<f{WIDE}").tobytes()


HONEST = np.ones(SIZE, f"<i{WIDE}").tobytes()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "NaN": lambda: odd(floats(np.nan)),
    "infinity": lambda: odd(floats(np.inf)),
    "the least whole number": lambda: honest(HERE, -(2 ** (8 * WIDE - 1))),
    "the largest whole number": lambda: honest(HERE, 2 ** (8 * WIDE - 1) - 1),
    "longer than its clip": lambda: honest(HERE, 2**24),
    "a number too many": lambda: odd(HONEST + bytes(WIDE)),
    "a number too few": lambda: odd(HONEST[:-WIDE]),
    "a hundred times too long": lambda: odd(bytes(100 * longest_answer(SIZE))),
    "another round's": lambda: honest(replace(HERE, round=1)),
    "a later round's": lambda: honest(replace(HERE, round=3)),
    "another plan's": lambda: honest(replace(HERE, plan="0" * 64)),
    "another party's": lambda: honest(replace(HERE, party="east")),
    "another's name under its own words": lambda: sealed(
        "answer", replace(HERE, party="east"), {}, b"", key=KEYS["north"]
    ),
    "a stranger's": lambda: PartyAnswer(
        place=HERE, steps=np.ones(SIZE, np.int64), unclipped=0
    ).to_bytes(Ed25519PrivateKey.generate(), wide=WIDE),
    "the question": lambda: Request(place=HERE, weights=np.zeros(SIZE, np.float32), clip={}).to_bytes(KEYS["north"]),
    "an acceptance": lambda: sealed("acceptance", HERE, {}, b"", key=KEYS["north"]),
    "more clients than one": lambda: odd(HONEST, unclipped=2),
    "less than no client": lambda: odd(HONEST, unclipped=-1),
    "nothing": lambda: b"",
    "noise": lambda: bytes(range(256)) * 4,
}  # fmt: skip


def saying(answers: Mapping[int, bytes]) -> PlainLine:
    def node(answer: bytes) -> Callable[[bytes], bytes]:
        return lambda _: answer

    return PlainLine({number: node(answer) for number, answer in answers.items()})


def summed(answer: bytes) -> tuple[Integers, Any]:
    """What a round comes to in which north sends this, and the others what is right."""
    others = {number: honest(replace(HERE, party=NAMES[number])) for number in (1, 2)}
    line = saying({0: answer, **others})
    network = network_of(line, OFFER, patience=Patience(timeout=1, clock=VirtualClock()))
    found = network.part(zeros(), range(3), round=2, clip=CLIP)
    return found.total.steps, found.observed


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_no_honest_party_sends_counts_as_zero_and_costs_next_to_nothing(kind: str) -> None:
    answer = HOSTILE[kind]()
    tracemalloc.start()
    steps, observed = summed(answer)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert steps.tolist() == [2] * SIZE
    assert observed.contributions - observed.dropped == 2
    assert peak < 500_000 + 3 * len(answer)


def test_what_an_honest_one_sends_counts() -> None:
    """The control."""
    assert summed(honest(HERE))[0].tolist() == [3] * SIZE
    assert summed(odd(HONEST))[0].tolist() == [3] * SIZE


def test_a_party_that_lies_moves_the_sum_by_its_clip_and_no_more() -> None:
    """What is left to it is what every party may do: send any contribution that is as long as its clip allows."""
    largest = RoundTask.stated(OFFER, 2, CLIP).expected(HERE, contributions=1).largest
    for value, counted in ((int(largest / SIZE**0.5), True), (int(1.001 * largest / SIZE**0.5), False)):
        assert summed(honest(HERE, value))[0].tolist() == [2 + value * counted] * SIZE


def test_a_node_of_another_key_is_not_the_party() -> None:
    nodes = [Node(id=number, party=name, key=KEYS["east"].public_key()) for number, name in enumerate(NAMES)]
    line = saying({number: honest(replace(HERE, party=name)) for number, name in enumerate(NAMES)})
    network = Network(
        transport=line, offer=OFFER, nodes=lambda: nodes, key=SERVER, patience=Patience(timeout=1, clock=VirtualClock())
    )
    assert network.part(zeros(), range(3), round=2, clip=CLIP).total.steps.tolist() == [1] * SIZE
    with pytest.raises(DataError):
        network.part(np.ones(SIZE), range(3), round=2, clip=CLIP)  # and no question is put twice in other words


class Faint(Made):
    """A party whose examples move no model: it contributes next to nothing."""

    def engine(self, offer: Offer) -> CohortEngine:
        local = Local(learning_rate=1e-9, batch_size=4)
        return CohortEngine(MODEL, alone(own(0), number=0, clients=len(NAMES)), local)


def test_a_listener_learns_nothing_from_the_length_of_an_answer(tmp_path: Path) -> None:
    """A contribution near zero, whose numbers would fit two bytes, is as long as any other."""
    lengths, largest = [], []
    for kind in (Made, Faint):
        party = kind(tmp_path / kind.__name__).start()
        party.answer(OFFER.to_bytes(SERVER))
        answer = party.answer(asked(OFFER, 0, weights=1.0))
        party.close()
        lengths.append(len(answer))
        expected = RoundTask.stated(OFFER, 0, CLIP).expected(replace(HERE, round=0), contributions=1)
        signed = read_answer(answer, expected=expected, key=KEYS["north"].public_key())
        largest.append(int(np.abs(decoded(*signed, expected=expected).steps).max()))
    assert lengths[0] == lengths[1]
    assert largest[0] > 2**15 > largest[1]  # the control: they are not alike


@pytest.mark.parametrize("size", [8, 10_000])
def test_a_party_can_send_little_more_than_its_own_noise(size: int) -> None:
    plan = plan_of(noise_by="party")
    offer = Offer.of_plan(plan, size=size, parties=NAMES)
    place = Place(plan=offer.fingerprint, round=0, party="north")
    task = RoundTask.stated(offer, 0, CLIP)
    expected = task.expected(place, contributions=1)
    usual = CLIP.clip_norm * (1 + math.sqrt(size)) / task.step
    noises = np.random.default_rng(0).normal(size=(100, size)) * CLIP.clip_norm / task.step
    control = np.linalg.norm(noises, axis=1).max() + CLIP.clip_norm / task.step
    assert control < expected.largest < usual + 12 * CLIP.clip_norm / task.step + 0.02 * usual


MANY = 5_000


class Piece(ConfigRecord):
    """A piece that counts how often one is looked into."""

    looked = 0

    def get(self, *given: Any) -> Any:
        Piece.looked += 1
        return super().get(*given)


def pieces(count: int) -> RecordDict:
    Piece.looked = 0
    return RecordDict({str(number): Piece({"bytes": b""}) for number in range(count)})


def message_of(number: str, content: RecordDict) -> Message:
    return make_message(Metadata(1, number, 2, 1, number, "", 1.0, 1.0, "train"), content=content)


class Grid:
    """Holds the answers of an attacker and of an honest party."""

    def pull_messages(self, _: object) -> list[Message]:
        return [message_of("attacker", pieces(MANY)), message_of("honest", pack(b"answer"))]


def test_an_answer_of_more_pieces_than_its_length_needs_is_not_looked_into() -> None:
    link = GridLink(Grid(), [])  # type: ignore[arg-type]  # as much of one as is asked
    assert dict(link.pull(["attacker", "honest"], 2 * PIECE)) == {"attacker": b"", "honest": b"answer"}
    assert Piece.looked == 0
    with pytest.raises(DataError, match="too many pieces"):
        unpack(pieces(3), 2 * PIECE)


def test_control_an_answer_that_may_be_so_long_is_read_piece_by_piece() -> None:
    assert unpack(pieces(MANY), MANY * PIECE) == b""
    assert Piece.looked == MANY
