"""`incrowd bench --work simulation`: what it reports, and that all that take part do the same work."""

import subprocess
import sys
import time

import pytest
import torch

from contest.flower import as_introduced
from contest.lean import Trainer
from contest.peak import processors
from contest.simulation import FLOWER, HERE, SIMULATED, Line, SimulationContest, SimulationReport
from contest.works import WORKS
from harness import processes
from incrowd.errors import ConfigError
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


@pytest.mark.parametrize(
    ("wrong", "field"), [({"rounds": 0}, "rounds"), ({"workers": (0,)}, "workers"), ({"batch_size": 0}, "batch_size")]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} = 0"):
        SimulationContest(**wrong)  # type: ignore[arg-type]  # that is the point


def test_more_workers_than_processors_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers = "):
        SimulationContest(workers=(len(processors()) + 1,))


def test_training_as_introduced_is_the_lean_loops() -> None:
    task = small.task()
    trainer, rows = Trainer(task), task.rows(0, round=1)
    start = task.work.model().with_weights(task.start).state_dict()
    found = as_introduced(task, trainer, start, rows)
    trainer.train([one.clone() for one in start.values()], rows)
    for one, other in zip(found.parameters(), trainer.parameters, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_our_engine_gets_an_own_cnn_as_it_is_written() -> None:
    assert type(WORKS["own-cnn"].model().module) is type(WORKS["own-cnn"].module())
    assert type(WORKS["cnn"].model().module) is not type(WORKS["cnn"].module())


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_a_family_is_counted_and_put_to_sleep() -> None:
    words = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", words]) as parent:
        end = time.monotonic() + 20
        while len(family := processes.family(parent.pid)) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(processes.called(family, "while True: pass")) == 2  # the parent's words hold the child's
        while processes.processor_seconds(family) < 0.2 and time.monotonic() < end:
            time.sleep(0.05)
        with processes.asleep(family):
            time.sleep(0.1)
            before = processes.processor_seconds(family)
            time.sleep(0.3)
            assert processes.processor_seconds(family) == before
            with processes.awake(family):
                while processes.processor_seconds(family) == before and time.monotonic() < end:
                    time.sleep(0.05)
            assert processes.processor_seconds(family) > before
        found = processes.memory(parent.pid)
        assert 0 < found["private"] <= found["resident"] <= found["most"]
        for process in sorted(family, reverse=True):
            subprocess.run(["kill", "-9", str(process)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_everyone_does_the_same_work_in_turns() -> None:
    contest = SimulationContest(works=[small.PERCEPTRON], workers=(1,), rounds=1)
    report = contest.run()
    assert [one.name for one in report.lines] == [HERE, SIMULATED, FLOWER, "flower as introduced"]
    assert report.same == {"small b10 1": True}
    assert all(one.seconds > 0 for one in report.lines)
    assert report.lines[1].worker_memory is not None
