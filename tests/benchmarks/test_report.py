import json
from dataclasses import replace

import pytest

from contest.report import Match, Report, Timing
from tests.benchmarks.small import PERCEPTRON, task

OURS = Timing(name="incrowd", threads=1, seconds=[9.0, 1.0, 2.0], difference=0.0)
LEAN = Timing(name="lean", threads=1, seconds=[5.0, 7.0, 6.0], difference=1e-6)
DOUBLE = Timing(name="incrowd", threads=2, seconds=[1.0, 1.0, 1.0], difference=2e-7)
MACHINE = {"processors": 2}


def report(*timings: Timing) -> Report:
    small = Match(task=task(), timings=timings, overheads=[0.3, 0.1, 0.2], peak=4e6)
    large = Match(
        task=task(batch_size=30),
        timings=[replace(timing, seconds=[2 * one for one in timing.seconds]) for timing in timings],
        overheads=[0.5],
        peak=5e6,
    )
    return Report.of([small, large], skipped={"pfl": "not installed"}, machine=MACHINE, memory=None)


def test_rates_are_those_of_the_median_round() -> None:
    ours, lean, *_ = report(OURS, LEAN).results
    assert (ours.seconds_per_round, lean.seconds_per_round) == (2.0, 6.0)
    assert ours.client_updates_per_second == PERCEPTRON.cohort / 2
    assert ours.gflops == pytest.approx(PERCEPTRON.operations * PERCEPTRON.cohort / 2 / 1e9)


def test_shares_are_of_the_best_peak_and_of_as_many_threads() -> None:
    found = report(OURS, LEAN, DOUBLE)
    ours, _, double, *_ = found.results
    assert ours.of_peak == pytest.approx(ours.gflops * 1e9 / 5e6)
    assert double.of_peak == pytest.approx(double.gflops * 1e9 / (2 * 5e6))
    assert found.machine == {"processors": 2, "peak_gflops": pytest.approx(0.005)}


def test_ratios_are_of_medians_each_task_for_itself() -> None:
    assert report(OURS, LEAN, DOUBLE).ratios == {
        "small b10 vs lean": 3.0,
        "small b10 2 threads vs 1": 2.0,
        "small b30 vs lean": 3.0,
        "small b30 2 threads vs 1": 2.0,
    }


def test_overheads_are_medians_and_differences_are_kept() -> None:
    found = report(OURS, LEAN)
    assert found.overheads == {"small b10": 0.2, "small b30": 0.5}
    assert found.differences == {"small b10 vs lean": 1e-6, "small b30 vs lean": 1e-6}


def test_the_report_is_json() -> None:
    found = json.loads(json.dumps(report(OURS, LEAN, DOUBLE).to_dict(), allow_nan=False))
    assert set(found) == {"results", "ratios", "differences", "overheads", "machine", "skipped", "memory"}
    assert set(found["results"][0]) == {
        "name",
        "work",
        "batch",
        "threads",
        "client_updates_per_second",
        "gflops",
        "of_peak",
        "seconds_per_round",
    }


def test_the_report_is_a_table_for_people() -> None:
    memory = {"megabytes": 812.0, "seconds": 7.5, "clients": 10_000, "cohort": 500, "weights": 532_110}
    text = replace(report(OURS, LEAN, DOUBLE), memory=memory).to_text()
    assert "| small | 10 | lean | 1 | 0.8 |" in text
    assert "| 6.000 | 3.00 |" in text
    assert "2.00 times 1 thread" in text
    assert "the largest difference is 1.0e-06" in text
    assert "Left out: pfl, not installed." in text
    assert "812 MB" in text
