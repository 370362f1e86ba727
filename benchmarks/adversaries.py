"""What three adversaries find out about one contribution to a pool of draw and discard, by attack.

    python benchmarks/adversaries.py             about a minute on two cores
    python benchmarks/adversaries.py --quick     a fifth of the contributions

Who listens to what a device sends, who looks at the server's instances, and who sees what is published: each tells two
tables apart that are as unlike as can be, at epsilon 2, by contributions to pools of several sizes whose answers
overwrite (merge 1) or are merged by a quarter. Each figure is
a lower bound on epsilon with 95 % confidence, and the area under the curve in brackets.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from incrowd import Specification
from incrowd.audit.devices import pooled
from incrowd.audit.finding import Finding
from incrowd.audit.pool_views import MOST_OTHERS

FIELDS = {"bought": {"type": "boolean"}, "first": {"type": "number", "low": 0, "high": 1}}
POOLS = (1, 4, 20)
MERGES = (1.0, 0.25)
SEEN = (
    "what a device sends",
    "instances before and after",
    "instances after",
    "instances before and later",
    "one instance later",
    "average before and after",
    "average before and later",
)
TRIALS, FEW = 20_000, 4_000


def measured(trials: int) -> Iterator[tuple[int, float, list[Finding]]]:
    """The findings of each pool."""
    for instances in POOLS:
        for merge in MERGES:
            asked = Specification.from_formula(
                "bought ~ first",
                name="adversaries",
                fields=FIELDS,
                gamma=0.05,
                clip=0.1,
                epsilon=2.0,
                instances=instances,
                merge=merge,
            )
            yield instances, merge, pooled(asked, trials=trials, seed=1, confidence=0.95)


def main() -> None:
    """Measure all, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the contributions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    results = measured(FEW if given.quick else TRIALS)
    if given.json:
        told = [{"instances": k, "merge": merge, **asdict(each)} for k, merge, found in results for each in found]
        print(json.dumps(told))
        return
    print(f"| instances | merge | answers later | {' | '.join(SEEN)} |")
    print("| ---: | ---: | ---: | " + " | ".join(["---:"] * len(SEEN)) + " |")
    for instances, merge, found in results:
        cells = [f"{each.lower_bound:.2f} ({each.auc:.2f})" for each in found]
        print(f"| {instances} | {merge:g} | {min(MOST_OTHERS, 2 * instances)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
