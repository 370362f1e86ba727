"""How good a first run is: `incrowd init`, the blanks filled in, `incrowd train`; beside each recipe, and none.

    python benchmarks/first_run.py --seeds 3

Made-up visits of 2,000 patients, epsilon 4, and a public test table; a few columns tell the label, the others nothing.
"""

import argparse
import csv
import math
import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from incrowd import Federation
from incrowd.data.columns import read_header, template
from incrowd.errors import ConfigError

PATIENTS, EPSILON, DELTA = 2000, 4.0, 1e-5
WARDS = ("surgery", "medicine", "children", "eyes")
COLUMNS = {
    "age": "{range = [0, 120]}",
    "sex": '{levels = ["f", "m"]}',
    "ward": f"{{levels = {list(WARDS)}}}".replace("'", '"'),
    "stay": '{kind = "whole number", range = [0, 60]}',
    "smokes": '"yes/no"',
    "height": "{range = [100, 220]}",
}
SETS = {"8 % positive": 0.08, "half positive": 0.5}
WAYS = ("init", "general", "tables", "none")


def rows(patients: int, positive: float, draw: np.random.Generator, *, prefix: str) -> Iterator[list[Any]]:
    """Visits, one to six of each patient."""
    for patient in range(patients):
        smokes = draw.random() < 0.3
        for _ in range(draw.integers(1, 7)):
            age, ward, stay = int(draw.integers(18, 95)), int(draw.integers(4)), int(draw.geometric(0.2))
            risk = 0.05 * (age - 56) + 1.2 * smokes + 0.8 * (ward == 1) + 0.1 * (min(stay, 60) - 5)
            label = draw.random() < 1 / (1 + np.exp(-risk - np.log(positive / (1 - positive)) - 0.4 * (positive < 0.5)))
            named = (
                age,
                "fm"[draw.integers(2)],
                WARDS[ward],
                min(stay, 60),
                "ny"[int(smokes)],
                int(draw.integers(140, 205)),
            )
            yield [f"{prefix}{patient}", *named, "yes" if label else "no"]


def settings(folder: Path, positive: float, seed: int) -> Path:
    """What `incrowd init` writes for such a table, filled in as its comments say."""
    draw = np.random.default_rng(seed)
    for name, patients, prefix in (("visits", PATIENTS, "p"), ("test", 500, "t")):
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["patient", *COLUMNS, "returned"])
            writer.writerows(rows(patients, positive, draw, prefix=prefix))
    table = folder / "visits.csv"
    text = template(table, read_header(table), client="patient", label="returned", seen="visits.csv")
    for blank, filled in {
        'classes = ["?"]': 'classes = ["no", "yes"]',
        "clients = 0 ": f"clients = {PATIENTS} ",
        "# test_file": "test_file",
        "epsilon = 0.0": f"epsilon = {EPSILON}",
        "delta = 0.0": f"delta = {DELTA}",
        **{f'{name} = "?"': f"{name} = {meaning}" for name, meaning in COLUMNS.items()},
    }.items():
        text = text.replace(blank, filled, 1)
    path = folder / "visits.toml"
    path.write_text(text, encoding="utf-8")
    return path


def auc(way: str, positive: float, seed: int) -> float:
    """The AUC of a first run, one way."""
    with tempfile.TemporaryDirectory(prefix="incrowd-first-") as name:
        folder = Path(name)
        os.environ["INCROWD_STATE"] = str(folder / "state")
        path = settings(folder, positive, seed)
        text = path.read_text(encoding="utf-8")
        if way != "init":
            recipe = "" if way == "none" else f'recipe = "{way}"'
            path.write_text(text.replace('recipe = "tables"', recipe, 1), encoding="utf-8")
        try:
            how = ['run.randomness="seeded"', f"run.seed={seed}"]  # the same noise for each way
            result = Federation.from_settings(path, overrides=how).train(folder / "run", progress=False)
        except ConfigError as error:
            raise SystemExit(str(error)) from error
        return float(result.summary["metrics"]["auc"])


def _of(way: str, positive: float, seeds: int) -> str:
    found = [auc(way, positive, seed) for seed in range(seeds)]
    error = f" ± {statistics.stdev(found) / math.sqrt(seeds):.3f}" if seeds > 1 else ""
    return f"{statistics.fmean(found):.3f}{error}"


def main() -> None:
    """Print the table: AUC on the test table, mean and standard error over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    print(f"| AUC | {' | '.join(WAYS)} |\n| --- |{' ---: |' * len(WAYS)}")
    for name, positive in SETS.items():
        print(f"| {name} | {' | '.join(_of(way, positive, given.seeds) for way in WAYS)} |", flush=True)


if __name__ == "__main__":
    main()
