"""How long rounds of this checkout take beside those of another, an older commit's say, in the same minutes.

    git worktree add ../older COMMIT
    python benchmarks/paired.py ../older --work linear,mlp --batch 10,100 --data DIR

Each has a process of its own, which imports its own incrowd, and one thread. They take turns of half a second, the
first of a pair by turns, and of each pair there is a ratio in processor time: below 1 this checkout is faster. What
else the machine does meanwhile takes from both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
TURN = 0.5


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """The time of a round here over the time there, over all pairs."""

    work: str
    batch: int
    median: float
    lower_quartile: float
    upper_quartile: float


class Side:
    """A checkout at work, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.seconds()  # warm

    def seconds(self) -> float:
        """Processor seconds of a round, over a turn."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018 - both are pipes
        stdin.write("turn\n")
        stdin.flush()
        if not (line := stdout.readline()):
            raise SystemExit(f"{self._process.args!r} ended: what it wrote above says why")
        return float(line)


@contextmanager
def started(checkout: Path, work: str, batch: int, data: Path | None) -> Iterator[Side]:
    """A side that is ended afterwards."""
    command = [sys.executable, str(HERE / "benchmarks" / "paired.py"), "--serve", work, str(batch)]
    paths = os.pathsep.join([str(checkout), str(checkout / "benchmarks")])
    process = subprocess.Popen(
        [*command, *([] if data is None else ["--data", str(data.resolve())])],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Side(process)
        finally:
            process.terminate()


def serve(work: str, batch: int, data: Path | None) -> None:
    """Rounds of whichever checkout is on the path, a turn for each line that is asked for."""
    from contest.ours import Ours
    from contest.works import Task, named

    ours = Ours(Task(work=named(work), batch_size=batch, folder=data))
    state = ours.algorithm.init()
    for _ in sys.stdin:
        rounds, begin, cpu = 0, time.perf_counter(), time.process_time()
        while rounds == 0 or time.perf_counter() - begin < TURN:
            state, _ = ours.algorithm.apply(state)
            rounds += 1
        print((time.process_time() - cpu) / rounds, flush=True)


def compare(other: Path, work: str, batch: int, *, pairs: int, data: Path | None) -> Ratio:
    """One work at one batch size."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(started(one, work, batch, data)) for one in (HERE, other))
        ratios = []
        for pair in range(pairs):
            taken = [side.seconds() for side in ((here, there) if pair % 2 else (there, here))]
            ratios.append(taken[0] / taken[1] if pair % 2 else taken[1] / taken[0])
    lower, median, upper = statistics.quantiles(ratios, n=4)
    return Ratio(work=work, batch=batch, median=median, lower_quartile=lower, upper_quartile=upper)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", type=Path, help="the other checkout")
    parser.add_argument("--work", default="linear,mlp,mlp600", help="names of `incrowd bench --work`, with commas")
    parser.add_argument("--batch", default="10,100", help="batch sizes, with commas")
    parser.add_argument("--data", type=Path, help="the folder that has mnist/; without it images are synthetic")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        serve(given.serve[0], int(given.serve[1]), given.data)
        return
    if given.other is None or not (given.other / "benchmarks" / "contest").is_dir():
        parser.error(f"other = {given.other}: give a folder with another checkout of this repository")
    if given.pairs < 2:
        parser.error(f"pairs = {given.pairs}: give at least 2")
    works = [(work, int(batch)) for work in given.work.split(",") for batch in given.batch.split(",")]
    found = []
    for work, batch in works:
        found.append(compare(given.other.resolve(), work, batch, pairs=given.pairs, data=given.data))
        if not given.json:
            one = found[-1]
            print(
                f"{work} b{batch}: a round takes {one.median:.2f} times as long as there "
                f"({one.lower_quartile:.2f} to {one.upper_quartile:.2f})",
                flush=True,
            )
    if given.json:
        print(json.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    main()
