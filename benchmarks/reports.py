"""How long a report takes, and what a live page computes and sends for one more round, of runs of many rounds.

    python benchmarks/reports.py

A simulation of the embedded digits, its last round repeated: what is drawn is as much as of a run that was as long.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import incrowd
from harness.results import markdown
from incrowd.report.page import page, sections
from incrowd.report.shown import read

ROUNDS = (100, 1_000, 10_000)
OFTEN = 7


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A page of so many rounds, and its next tick."""

    rounds: int
    page_kb: float
    page_ms: float
    tick_kb: float
    tick_ms: float


def measured(shown: Any, rounds: int) -> Rendered:
    """The page of a run that is so long, and what changes on it with the next round."""
    long, longer = lengthened(shown, rounds), lengthened(shown, rounds + 1)
    text, page_s = timed(lambda: page([long], live=True))
    before = sections([long], live=True)
    after, tick_s = timed(lambda: sections([longer], live=True))
    sent = json.dumps({name: content for name, content in after.items() if before.get(name) != content})
    return Rendered(
        rounds=rounds,
        page_kb=len(text.encode()) / 1e3,
        page_ms=1e3 * page_s,
        tick_kb=len(sent.encode()) / 1e3,
        tick_ms=1e3 * tick_s,
    )


def lengthened(shown: Any, rounds: int) -> Any:
    """The same with its last round repeated."""
    rows = [{**shown.rounds[-1], "round": at, "epsilon": 8 * (at + 1) / rounds} for at in range(rounds)]
    return replace(shown, rounds=rows)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What comes out, and the median of some times, in seconds."""
    times, found = [], None
    for _ in range(OFTEN):
        begun = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - begun)
    return found, statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        quick = ["run.randomness=seeded", "run.seed=1", "run.plot=false", "privacy.rounds=3"]
        place = Path(folder) / "run"
        incrowd.Federation.from_settings(overrides=quick).train(place, progress=False)
        shown = read(place)
    found = [measured(shown, rounds) for rounds in ROUNDS]
    if as_json:
        print(json.dumps({"results": [asdict(each) for each in found]}))
        return
    rows = [
        {
            "rounds": f"{each.rounds:,}",
            "page, kB": f"{each.page_kb:.0f}",
            "page, ms": f"{each.page_ms:.0f}",
            "one more round, kB": f"{each.tick_kb:.0f}",
            "one more round, ms": f"{each.tick_ms:.0f}",
        }
        for each in found
    ]
    print("\n".join(markdown(rows)))


if __name__ == "__main__":
    main()
