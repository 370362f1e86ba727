"""`incrowd bench --work simulation`: what it reports, and that all that take part do the same work."""

import pytest

from contest.simulation import FLOWER, HERE, SIMULATED, Line, SimulationContest, SimulationReport
from tests.benchmarks import small


def line(name: str, seconds: float) -> Line:
    return Line(
        work="small b10",
        workers=1,
        name=name,
        rounds=3,
        seconds=seconds,
        shortest=seconds / 2,
        processor_seconds=seconds / 4,
        worker_memory={"proportional": 2e6, "private": 1e6} if name == SIMULATED else None,
    )


def test_a_report_says_how_much_longer_others_take() -> None:
    lines = [line(HERE, 0.9), line(SIMULATED, 1.0), line(FLOWER, 15.0)]
    report = SimulationReport(lines=lines, same={"small b10 1": True}, machine={"data": "MNIST"})
    assert report.ratios["small b10 1 flower"] == {"median": 15.0, "shortest": 15.0, "processor": 15.0}
    assert set(report.ratios) == {"small b10 1 flower", "small b10 1 incrowd train"}
    text = report.to_text()
    assert "| small b10 | 1 | flower | 15.000 | 7.500 | 3.750 |  | 15.00, 15.00 |" in text
    assert "the same bits" in text
    assert report.to_dict()["ratios"] == report.ratios


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_everyone_does_the_same_work_in_turns() -> None:
    contest = SimulationContest(works=[small.PERCEPTRON], workers=(1,), rounds=1)
    report = contest.run()
    assert [one.name for one in report.lines] == [HERE, SIMULATED, FLOWER, "flower as introduced"]
    assert report.same == {"small b10 1": True}
    assert all(one.seconds > 0 for one in report.lines)
    assert report.lines[1].worker_memory is not None
