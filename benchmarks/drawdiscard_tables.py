"""Held-out accuracy on scikit-learn's tables: draw and discard against local SGD with the same releases.

Breast cancer, wine and digits, per feature and per model, at equal epsilon; seeds deal, split and noise anew:

    python benchmarks/drawdiscard_tables.py --seeds 3
"""

import argparse
import math
import statistics
from collections.abc import Iterator
from typing import Any

from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from incrowd import Specification
from incrowd.drawdiscard import Rehearsal

Table = dict[str, list[Any]]
SETS = {"breast cancer": (load_breast_cancer, 4_000), "wine": (load_wine, 4_000), "digits": (load_digits, 12_000)}
"""How to load each, and how many contributions are made."""

PRIVACIES: dict[str, dict[str, Any]] = {
    "each number, epsilon = log 32": {"privacy": "feature", "epsilon": math.log(32), "clip": 0.02, "gamma": 1.0},
    "model, epsilon = 1": {"epsilon": 1.0, "clip": 1.0, "gamma": 4.0},
    "model, epsilon = 4": {"epsilon": 4.0, "clip": 1.0, "gamma": 4.0},
    "model, epsilon = 8": {"epsilon": 8.0, "clip": 1.0, "gamma": 4.0},
    "model, epsilon = 1, Laplace": {"epsilon": 1.0, "clip": 0.05, "gamma": 10.0, "noise": "laplace"},
    "model, epsilon = 4, Laplace": {"epsilon": 4.0, "clip": 0.05, "gamma": 10.0, "noise": "laplace"},
    "model, epsilon = 8, Laplace": {"epsilon": 8.0, "clip": 0.05, "gamma": 10.0, "noise": "laplace"},
    "model, epsilon = 8, delta = 1e-6, Gaussian": {
        "epsilon": 8.0,
        "clip": 0.05,
        "gamma": 3.0,
        "noise": "gaussian",
        "delta": 1e-6,
    },
}
"""The same for all sets: gamma and clip are of nobody's data."""

ALONE = {"instances": 1, "merge": 1.0}
"""Local SGD: one model, which every answer replaces."""


def table(name: str) -> tuple[Table, dict[str, dict[str, Any]]]:
    """The columns of a set, and its fields; the response is called ``class``."""
    loaded = SETS[name][0]()
    columns = {f"x{place}": column for place, column in enumerate(loaded.data.T.tolist())}
    fields: dict[str, dict[str, Any]] = {
        column: {"type": "number", "low": min(values), "high": max(values)}
        for column, values in columns.items()
        if min(values) < max(values)
    }
    classes = len(loaded.target_names)
    fields["class"] = (
        {"type": "boolean"} if classes == 2 else {"type": "category", "levels": [*map(str, range(classes))]}
    )
    return columns | {"class": loaded.target.tolist()}, fields


def specification(name: str, fields: dict[str, dict[str, Any]], keys: dict[str, Any], *, alone: bool) -> Specification:
    """A linear model of all columns; where there is one model, steps are as long as those of the pool's average."""
    asked = Specification.from_formula("class ~ .", name=name, fields=fields, **keys)
    if not alone:
        return asked
    slower = asked.gamma * asked.merge / asked.instances
    return Specification.of(asked.model_dump(mode="json") | ALONE | {"gamma": slower})


def rows(seeds: int, *, only: str = "") -> Iterator[dict[str, Any]]:
    """Mean accuracy and its standard deviation over the seeds."""
    for name, (_, contributions) in SETS.items():
        columns, fields = table(name)
        for promise, keys in PRIVACIES.items():
            if not promise.endswith(only):
                continue
            row: dict[str, Any] = {"set": name, "private": promise, "contributions": contributions}
            for way, alone in (("draw and discard", False), ("local SGD", True)):
                asked = specification(name, fields, keys, alone=alone)
                found = []
                for seed in range(seeds):
                    rehearsal = Rehearsal(asked=asked, table=columns, contributions=contributions, seed=seed)
                    found.append(rehearsal.report()["metrics"]["accuracy"])
                row[way] = (statistics.fmean(found), statistics.stdev(found) if seeds > 1 else 0.0)
            yield row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose second column ends so")
    given = parser.parse_args()
    print("| set | private with | contributions | draw and discard | local SGD |\n| --- | --- | --- | --- | --- |")
    for row in rows(given.seeds, only=given.only):
        both = " | ".join(f"{row[way][0]:.3f} ± {row[way][1]:.3f}" for way in ("draw and discard", "local SGD"))
        print(f"| {row['set']} | {row['private']} | {row['contributions']:,} | {both} |", flush=True)


if __name__ == "__main__":
    main()
