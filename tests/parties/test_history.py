"""What a server has asked goes along with every question, and survives the server."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import DataError, RoundUnanswered
from incrowd.parties.asking import Patience
from incrowd.parties.frames import ASKED, DIGEST, AskedBefore, Request
from incrowd.parties.network import Network
from tests.parties.nodes import PlainLine, VirtualClock
from tests.parties.parties import CLIP, MODEL, NAMES, SERVER, network_of, offer_for, plan_of

PLAN = "ab" * DIGEST


def digest(number: int) -> str:
    return f"{number:02x}" * DIGEST


@given(st.sets(st.integers(0, 30), max_size=12), st.booleans())
def test_it_is_the_same_in_every_life(tmp_path_factory: pytest.TempPathFactory, rounds: set[int], again: bool) -> None:
    path = tmp_path_factory.mktemp("history") / ASKED
    kept = AskedBefore()
    for number in sorted(rounds):
        for _ in range(1 + again):
            AskedBefore(path, plan=PLAN).add(number, digest(number + 1))
        kept.add(number, digest(number + 1))
    expected = b"".join(bytes([number + 1 if number in rounds else 0]) * DIGEST for number in range(32))
    for each in (AskedBefore(path, plan=PLAN), kept):
        assert [each.before(number) for number in range(33)] == [expected[: DIGEST * n] for n in range(33)]


@pytest.mark.parametrize("cut", range(1, DIGEST + 1))
def test_what_was_cut_off_was_never_asked(cut: int, tmp_path: Path) -> None:
    history = AskedBefore(tmp_path / ASKED, plan=PLAN)
    history.add(0, digest(1))
    history.add(1, digest(2))
    content = (tmp_path / ASKED).read_bytes()
    (tmp_path / ASKED).write_bytes(content[:-cut])
    again = AskedBefore(tmp_path / ASKED, plan=PLAN)
    assert again.before(2) == bytes.fromhex(digest(1)) + bytes(DIGEST)
    again.add(1, digest(3))
    assert AskedBefore(tmp_path / ASKED, plan=PLAN).before(2) == bytes.fromhex(digest(1) + digest(3))


def test_it_is_on_disk_before_anybody_is_asked(tmp_path: Path) -> None:
    offer = offer_for(plan_of())
    seen: list[bytes] = []

    def look(frame: bytes) -> bytes:
        found = Request.read(frame, key=SERVER.public_key(), most=MODEL.size)
        seen.append(found.history + bytes.fromhex(found.digest))
        assert AskedBefore(tmp_path / ASKED, plan=offer.fingerprint).before(found.place.round + 1) == seen[-1]
        return b""

    def server() -> Network:
        line = PlainLine(dict.fromkeys(range(len(NAMES)), look))
        found = network_of(line, offer, patience=Patience(timeout=0.1, clock=VirtualClock()))
        history = AskedBefore(tmp_path / ASKED, plan=offer.fingerprint)
        return Network(**{**vars(found), "history": history})

    for number in (0, 1, 3):
        with pytest.raises(RoundUnanswered):
            server().part(np.full(MODEL.size, 0.5 * number), range(3), round=number, clip=CLIP)
    assert [len(each) // DIGEST for each in seen[::3]] == [1, 2, 4]
    assert seen[-1].startswith(seen[3])
    with pytest.raises(DataError, match="not whole, or an old copy"):
        server().part(np.full(MODEL.size, 9.0), range(3), round=3, clip=CLIP)
