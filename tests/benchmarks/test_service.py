"""`incrowd bench --work service`: its devices are honest, and its figures are of what was accepted."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest
import uvloop

from contest.service import Served, ServiceContest, serving, specification
from contest.service_load import Counted, Devices


def run(**changes: float) -> Served:
    figures = {
        "weights": 387,
        "updates_per_second": 1000.0,
        "turned_away": 0.01,
        "server_us": 50.0,
        "redis_us": 0.0,
        "load_us": 30.0,
        "server_busy": 0.99,
        "p50_ms": 1.0,
        "p99_ms": 3.0,
        "memory_mb": 200.0,
    }
    return Served(name="memory", **(figures | changes))  # type: ignore[arg-type]  # numbers all


@pytest.mark.slow
@pytest.mark.parametrize("rate", [None, 300.0], ids=["as fast as it goes", "paced"])
def test_devices_of_the_load_are_accepted_and_at_the_pace_asked_for(tmp_path: Path, rate: float | None) -> None:
    asked = specification(387)
    with serving(asked, tmp_path, min(os.sched_getaffinity(0)), []) as (address, _):

        async def main() -> Counted:
            return await Devices(asked, *address, connections=8, rate=rate).run(2.0)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            counted = runner.run(main())
    assert counted.lost == 0
    assert counted.accepted == pytest.approx(len(counted.waits), rel=0.05)
    assert all(wait > 0 for wait in counted.waits)
    if rate is not None:
        assert len(counted.waits) == pytest.approx(2 * rate, rel=0.25)
        assert np.median(counted.waits) < 1.0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_contest_runs() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("server and load need a processor each")
    report = ServiceContest(sizes=(387,), stores=("memory", "redis"), seconds=3.0).run()
    for found in report.runs:
        assert found.updates_per_second > 10
        assert found.turned_away < 0.2
        assert found.server_us > 1
    assert report.runs[1].redis_us > 0
