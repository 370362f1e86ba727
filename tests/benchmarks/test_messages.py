"""`benchmarks/messages.py` measures real processes on loopback."""

import sys

import pytest
from messages import PARTS, measure

pytest.importorskip("flwr", reason="Flower is an extra")


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_every_part_of_a_deployment_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("messages.IDLE", 1.0)
    [found] = measure([5000], 2, poll=0.2, rounds=1)
    assert (found.weights, found.parties) == (5000, 2)
    assert found.seconds_a_round > 0
    assert set(found.processor_a_message) == set(found.most_memory) == set(PARTS)
    assert all(memory > 1e6 for memory in found.most_memory.values())
    assert found.processor_a_look["superlink"] > 0
    assert [*found.row()][:3] == ["weights", "parties", "s/round"]
