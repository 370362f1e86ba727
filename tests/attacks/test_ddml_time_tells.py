"""Attack: a server that reads a device's examples off the time that it takes to answer.

Examples whose response is none of the levels are left out before their features are computed. So a server that names
one diagnosis as the level, and asks for as much work as it can, reads from draw and answer whether a device has it.
"""

import time
from typing import Any

import pytest

from incrowd import Device, Server, Specification
from incrowd.drawdiscard import Policy
from incrowd.errors import SpecificationRefused
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.service.remote import RemoteServer
from tests.service.listener import Listener, Request, honest

pytestmark = pytest.mark.filterwarnings("ignore:none of the examples")

PACE_S = 2.0
POLICY = Policy()


def asked(texts: int, examples: int = 20) -> Specification:
    text = {"type": "text", "column": "note", "buckets": 2, "units": "characters", "shortest": 1, "longest": 12}
    fields: dict[str, Any] = {f"note{number}": text for number in range(texts)}
    return Specification.of(
        {
            "name": "doctor",
            "fields": {"diagnosis": {"type": "category", "levels": ["the one", "no other"]}, **fields},
            "response": "diagnosis",
            "terms": [[name] for name in fields],
            "link": "multinomial",
            "examples": examples,
            "epsilon": 2.0,
            "gamma": 0.05,
            "clip": 0.2,
            "instances": 4,
        }
    )


def seconds(diagnosis: str, pace_s: float) -> float:
    """From the draw of a patient's device to its answer, by the server's clock."""
    server = Server(asked(texts=2), turned_away=1e-6)
    heard: list[float] = []
    replied: list[float] = []

    def say(request: Request) -> bytes:
        heard.append(time.monotonic())
        said = talk(request)
        assert isinstance(said, bytes)
        replied.append(time.monotonic())
        return said

    talk = honest(server)
    rows = [{"diagnosis": diagnosis, "note": f"{number} how the patient is " * 15} for number in range(10)]
    ledger = Ledger.in_memory(budget=POLICY.budget, relation=Relation.REPLACE_ONE)
    with Listener(say).listening() as listener, Device(rows, ledger=ledger, policy=POLICY) as own:
        assert own.contribute(RemoteServer(listener.url, pace_s=pace_s)).accepted
    return heard[-1] - replied[-2]


@pytest.mark.slow
def test_the_time_from_draw_to_answer_tells_nothing() -> None:
    has, has_not = seconds("the one", PACE_S), seconds("another one", PACE_S)
    assert has_not == pytest.approx(PACE_S, abs=0.3)
    assert has % PACE_S == pytest.approx(0, abs=0.3)


def test_without_a_pace_it_does() -> None:
    """The control."""
    assert seconds("the one", 0) > 3 * seconds("another one", 0)


def test_no_more_work_is_done_than_fits_into_a_pace() -> None:
    columns = ["diagnosis", "note"]
    POLICY.check(asked(texts=2), columns)
    with pytest.raises(SpecificationRefused, match="pieces of text are more than this device allows"):
        POLICY.check(asked(texts=5), columns)
    with pytest.raises(SpecificationRefused, match="pieces of text"):
        POLICY.check(asked(texts=3, examples=100), columns)
