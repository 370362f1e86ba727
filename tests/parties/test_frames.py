"""Frames: what goes in comes out, and nothing else comes in."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from incrowd._random import Integers
from incrowd.errors import DataError
from incrowd.parties.frames import Expected, PartyAnswer, Place, Request, decoded, longest_answer, read_answer, sealed
from incrowd.parties.frames import opened as unread
from incrowd.parties.offer import Offer

KEY, OTHER = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
PLACE = Place(plan="p" * 64, round=3, party="north")
SIZE = 7
EXPECTED = Expected(place=PLACE, size=SIZE, contributions=2, largest=2.0**40)


def answer(steps: Integers | None = None, **rest: Any) -> PartyAnswer:
    steps = np.arange(SIZE) - 3 if steps is None else steps
    given: dict[str, Any] = {"place": PLACE, "steps": steps, "unclipped": 1}
    return PartyAnswer(**given | rest)


def opened(frame: object, expected: Expected = EXPECTED) -> PartyAnswer:
    return decoded(*read_answer(frame, expected=expected, key=KEY.public_key()), expected=expected)


def odd(body: bytes, **head: Any) -> bytes:
    """A frame that the party itself has signed, whatever is in it."""
    return sealed("answer", PLACE, {"unclipped": 0, **head}, body, key=KEY)


@given(steps=hnp.arrays(np.int64, SIZE, elements=st.integers(-(2**37), 2**37)), unclipped=st.integers(0, 2))
def test_an_answer_comes_out_as_it_went_in(steps: Integers, unclipped: int) -> None:
    found = opened(answer(steps, unclipped=unclipped).to_bytes(KEY, wide=8))
    assert found.steps.tolist() == steps.tolist()
    assert (found.unclipped, found.place) == (unclipped, PLACE)


@given(largest=st.floats(0.0, 2.0**61))
def test_an_answer_has_as_many_bytes_as_the_longest_one_needs(largest: float) -> None:
    expected = replace(EXPECTED, largest=largest)
    longest = np.eye(1, SIZE, dtype=np.int64)[0] * int(largest)
    lengths = {len(answer(steps).to_bytes(KEY, wide=expected.wide)) for steps in (longest, -longest, 0 * longest)}
    assert len(lengths) == 1
    assert opened(answer(longest).to_bytes(KEY, wide=expected.wide), expected).steps.tolist() == longest.tolist()
    assert expected.wide == 2 or largest >= 2 ** (4 * expected.wide - 1)  # half as many were too few


@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_not_a_bit_can_be_turned(place: int, bit: int) -> None:
    frame = bytearray(answer().to_bytes(KEY, wide=8))
    frame[place % len(frame)] ^= 1 << bit
    with pytest.raises(DataError):
        opened(bytes(frame))


@given(
    head=st.dictionaries(
        st.sampled_from(["unclipped", "size"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.lists(st.text())
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
    ),
    body=st.binary(max_size=200) | st.binary(min_size=8 * SIZE, max_size=8 * SIZE),
)
def test_a_party_that_signs_nonsense_is_refused_or_bounded(head: dict[str, Any], body: bytes) -> None:
    try:
        found = opened(odd(body, **head))
    except DataError:
        return
    assert found.steps.shape == (SIZE,)
    assert np.linalg.norm(found.steps.astype(float)) <= EXPECTED.largest
    assert found.unclipped <= 2


@pytest.mark.parametrize(
    "frame",
    [
        odd(bytes(8 * SIZE - 1)),
        odd(bytes(8 * SIZE + 8)),
        odd(bytes(2 * SIZE)),
        odd(bytes(14 * 10**6)),
        odd(bytes(8 * SIZE), unclipped=3),
        odd(bytes(8 * SIZE), unclipped=True),
        answer(np.full(SIZE, 2**40)).to_bytes(KEY, wide=8),
        b"incrowd1" + b"\xff" * 12 + bytes(64),
        bytes(longest_answer(SIZE) + 1),
        None,
        "text",
        bytearray(200),
    ],
    ids=lambda _: "",
)
def test_what_claims_too_much_is_refused_at_no_cost(frame: object) -> None:
    tracemalloc.start()
    with pytest.raises(DataError):
        opened(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300_000


@pytest.mark.parametrize("other", [{"round": 4}, {"plan": "q" * 64}, {"party": "south"}])
def test_an_answer_is_of_its_own_round_plan_and_party(other: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="another plan, round or party"):
        opened(answer(place=replace(PLACE, **other)).to_bytes(KEY, wide=8))


@given(
    weights=hnp.arrays(np.float32, st.integers(0, SIZE), elements=st.floats(-10, 10, width=32)),
    history=st.sampled_from([b"", bytes(range(96))]),
)
def test_a_request_comes_out_as_it_went_in(weights: np.typing.NDArray[np.float32], history: bytes) -> None:
    asked = Request(place=PLACE, weights=weights, clip={"kind": "x", "a": 1.5}, history=history)
    found = Request.read(asked.to_bytes(KEY), key=KEY.public_key(), most=SIZE)
    assert (found.place, found.clip) == (PLACE, asked.clip)
    assert found.weights.tobytes() == weights.tobytes()
    assert (found.digest, found.history) == (asked.digest, history)


@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        ({"size": 2, "clip": {}}, np.array([np.nan, 1], "<f4").tobytes(), "not finite"),
        ({"size": 3, "clip": {}}, bytes(8), "not as many"),
        ({"size": -2, "clip": {}}, bytes(8), "not as many"),
        ({"size": 2, "clip": {}}, bytes(8 + 64), "not as many"),
        ({"size": SIZE + 1, "clip": {}}, bytes(4 * SIZE + 4), "not as many"),
        ({"size": 2, "clip": []}, bytes(8), "how contributions are clipped"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(head: dict[str, Any], body: bytes, words: str) -> None:
    frame = sealed("request", PLACE, head, body, key=KEY)
    with pytest.raises(DataError, match=words):
        Request.read(frame, key=KEY.public_key(), most=SIZE)


@pytest.mark.parametrize(("head", "body"), [({}, b""), ({"offer": {}}, bytes(4))])
def test_an_offer_of_nothing_or_of_more_is_refused(head: dict[str, Any], body: bytes) -> None:
    frame = sealed("offer", PLACE, head, body, key=KEY)
    with pytest.raises(DataError, match="offers nothing"):
        Offer.of(unread(frame, ("offer",), key=KEY.public_key(), most=8))
