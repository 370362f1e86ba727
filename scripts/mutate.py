"""Tries every deliberate privacy bug of `scripts/mutants` on the tests that have to notice it.

python -m scripts.mutate                      all of them; status 1 unless every one is killed
python -m scripts.mutate NAME "A topic" ...   some of them
python -m scripts.mutate --write              renews the table in docs/conformance.md, without a trial
"""

import argparse
import json
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from scripts._common import ROOT, finish
from scripts._mutant import MUTANTS, Mutant, Unfit, chosen, load
from scripts._trial import Verdict, control, copied, load_dependencies, trials

PAGE = ROOT / "docs/conformance.md"
BEGIN, END = "<!-- mutants -->\n", "<!-- /mutants -->\n"


def updated(page: str, mutants: Sequence[Mutant]) -> str:
    """The page with today's table of mutants."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table(mutants)}\n{END}", page, flags=re.DOTALL)


def table(mutants: Sequence[Mutant]) -> str:
    """The mutants in Markdown, topic after topic."""
    return "\n".join(_tables(mutants))


def _tables(mutants: Sequence[Mutant]) -> Iterator[str]:
    yield f"{len(mutants)} bugs in {len({mutant.file for mutant in mutants})} modules.\n"
    for topic, its in groupby(mutants, key=lambda mutant: mutant.topic):
        yield f"### {topic}\n"
        yield "| bug | where | killed by |\n| --- | --- | --- |"
        for mutant in its:
            tests = ", ".join(f"`{Path(test).name.rpartition('::')[2]}`" for test in mutant.tests)
            yield f"| {mutant.breaks.replace('|', chr(92) + '|')} | `{_module(mutant.file)}` | {tests} |"
        yield ""


def _module(file: str) -> str:
    return file.removeprefix("incrowd/").removesuffix(".py").removesuffix("/__init__")


def tested(root: Path, mutants: Sequence[Mutant], *, jobs: int, limit_s: float) -> Iterator[tuple[Mutant, Verdict]]:
    """The verdict on each mutant, after a control: without any, the same tests pass (`Unfit` where they do not)."""
    for mutant in mutants:
        mutant.applied(root)
    load_dependencies()
    with copied(root) as tree:
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        found = control(tree, tests, limit_s=limit_s * len(tests))
        _say(f"{found.outcome:9} {found.seconds:6.1f} s  the control: {len(tests)} tests without any mutant")
        if found.outcome != "passed":
            raise Unfit(f"without any mutant the tests do not pass ({found.by}): put that right first\n{found.output}")
        for mutant, verdict in trials(tree, mutants, jobs=jobs, limit_s=limit_s):
            _say(f"{verdict.outcome:9} {verdict.seconds:6.1f} s  {mutant.name}  {verdict.by}")
            yield mutant, verdict


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.mutate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="NAME", help="names or topics; without any, all mutants")
    parser.add_argument("--jobs", type=int, default=1, help="so many at a time")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds until a trial counts as hung")
    parser.add_argument("--json", action="store_true", help="the verdicts as JSON on standard output")
    parser.add_argument("--list", action="store_true", help="say which there are, and try none")
    parser.add_argument("--write", action="store_true", help="renew the table in docs/conformance.md, and try none")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another tree than this one, with mutants of its own")
    return parser


def main() -> None:
    """Does what the command line says; status 1 where a mutant was not killed, 2 where one cannot be tried."""
    parser = _parser()
    asked = parser.parse_args()
    try:
        mutants = chosen(load(asked.tree / MUTANTS), asked.words)
        if asked.list:
            print(*(f"{mutant.name}: {mutant.breaks}" for mutant in mutants), sep="\n")
        elif asked.write:
            PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")
        else:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that trials are ended, too
            _judge(list(tested(asked.tree, mutants, jobs=asked.jobs, limit_s=asked.limit)), as_json=asked.json)
    except Unfit as error:
        parser.error(str(error))


def _judge(found: Sequence[tuple[Mutant, Verdict]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({mutant.name: {"outcome": each.outcome, "by": each.by} for mutant, each in found}, indent=1))
    left = [(mutant, verdict) for mutant, verdict in found if verdict.outcome != "killed"]
    _say(f"{len(found) - len(left)} of {len(found)} mutants killed")
    finish([f"{mutant.name}: {verdict.outcome}\n{verdict.output[-2000:]}" for mutant, verdict in left])


if __name__ == "__main__":
    main()
