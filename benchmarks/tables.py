"""How right the recipes `tables` and `text` are on tables dealt among clients, beside the most frequent class.

    python benchmarks/tables.py --data DIR                       census incomes, DIR/adult/adult.csv.gz
    python benchmarks/tables.py --data DIR --set unstated        the same without the ranges of its numbers
    python benchmarks/tables.py --data DIR --set phishing        addresses of web pages, DIR/phishing/urls.csv.gz
    python benchmarks/tables.py --data DIR --set films           sentences of film reviews, DIR/films/*.csv.gz
    python benchmarks/tables.py --set words --recipe general     made up: a few words say the class
    python benchmarks/tables.py --data DIR --held-out            on rows of validation: to choose settings by
    python benchmarks/tables.py --data DIR --json                one line of JSON for each row

Of each set the first three fifths train (in a fixed random order where the file is sorted by label), the fourth fifth
is the test set, and settings were chosen on the last fifth. Films have a test file of their
own. `sorted` clients have rows of one label each, nearly.
"""

import argparse
import csv
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.arrays import Integers
from incrowd import Clients, Federation, Private, RunOptions, SeededRandomness
from incrowd.data import Columns, Examples, Partition, Reading, iid, read_table

DELTAS = {100: 1e-3, 1000: 1e-5}


def _levels(words: str) -> dict[str, Any]:
    return {"levels": words.split(), "other": True, "missing": "other"}


ADULT: dict[str, Any] = {
    "age": {"range": [17, 90], "outside": "clip"},
    "workclass": _levels(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked"
    ),
    "education": _levels(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool"
    ),
    "education_num": {"range": [1, 16]},
    "marital_status": _levels(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": _levels(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces"
    ),
    "relationship": _levels("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": _levels("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": {"levels": ["Female", "Male"]},
    "capital_gain": {"range": [0, 99_999]},
    "capital_loss": {"range": [0, 5000], "outside": "clip"},
    "hours_per_week": {"range": [1, 99], "outside": "clip"},
    "native_country": _levels("United-States Mexico Philippines Germany Canada"),
}
"""What the codebook of the census says of the columns."""

UNSTATED = {name: "number" if "range" in meaning else meaning for name, meaning in ADULT.items()}
"""The same of whoever does not know how large numbers may be."""


def _census(schema: dict[str, Any]) -> Columns:
    return Columns(
        client="", label="income", classes=("<=50K", ">50K"), schema=schema, reading=Reading(missing_texts=("?", ""))
    )


SETS = {
    "adult": ("adult/adult.csv.gz", _census(ADULT)),
    "unstated": ("adult/adult.csv.gz", _census(UNSTATED)),
    "phishing": (
        "phishing/urls.csv.gz",
        Columns(
            client="",
            label="label",
            classes=2,
            schema={"url": {"kind": "text", "buckets": 1024}},
            reading=Reading(blanks="strip"),
        ),
    ),
    "films": ("films/train.csv.gz", Columns(client="", label="positive", classes=2, schema={"text": "text"})),
}

WORDS = ["".join(word) for word in np.random.default_rng(1).choice([*"abcdefghijklmnopqrstuvwxyz"], (30, 6))]
_TELLING, _WRONG, _MADE_UP = set(WORDS[:5]), 0.03, 10_000
_TEXTS, _NUMBERS = ([f"{kind}{place}" for place in range(count)] for kind, count in (("note", 6), ("number", 4)))

MADE_UP = Columns(
    client="",
    label="said",
    classes=("no", "yes"),
    schema={name: {"kind": "text"} for name in _TEXTS} | {name: {"range": [0, 10]} for name in _NUMBERS},
)
"""Notes of four words; what is said is whether the last of them has one of five."""

RECIPES = {"adult": "tables", "unstated": "tables", "phishing": "text", "films": "text", "words": "tables"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """What was measured."""

    data_set: str
    recipe: str
    clients: int
    partition: str
    epsilon: float
    accuracy: float
    standard_error: float
    majority: float


def made_up() -> Examples:
    """Rows of notes and numbers, a few of them wrong."""
    generator = np.random.default_rng(0)
    notes = generator.choice(WORDS, (_MADE_UP, len(_TEXTS), 4))
    numbers = generator.uniform(0, 10, (_MADE_UP, len(_NUMBERS))).round(2)
    wrong = generator.uniform(size=_MADE_UP) < _WRONG
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "made-up.csv")
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*_TEXTS, *_NUMBERS, "said"])
            for row, beside, other in zip(notes.tolist(), numbers.tolist(), wrong.tolist(), strict=True):
                said = bool(_TELLING & set(row[-1])) != other
                writer.writerow([*map(" ".join, row), *beside, "yes" if said else "no"])
        return read_table(path, MADE_UP)[0]


def parts(name: str, folder: Path, *, held_out: bool) -> tuple[Examples, Examples, Columns]:
    """Rows to train with and to test with, and what their columns mean."""
    if name == "words":
        examples, columns = made_up(), MADE_UP
    else:
        path, columns = SETS[name]
        examples, _ = read_table(folder / path, columns)
    if name == "films" and not held_out:
        return examples, read_table(folder / "films" / "test.csv.gz", columns)[0], columns.resolved(())
    fifth = len(examples) // 5
    order = np.random.default_rng(0).permutation(len(examples)) if RECIPES[name] == "text" else np.arange(len(examples))
    tested = slice(4 * fifth, 5 * fifth) if held_out else slice(3 * fifth, 4 * fifth)
    return examples.some(order[: 3 * fifth]), examples.some(order[tested]), columns.resolved(())


def dealt(labels: Integers, *, clients: int, partition: str, seed: int) -> Partition:
    """Rows at random, or sorted by label."""
    if partition == "iid":
        return iid(labels, clients=clients, randomness=SeededRandomness(seed=seed))
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    return Partition.of(np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], clients))


def measure(
    name: str,
    split: tuple[Examples, Examples, Columns],
    *,
    recipe: str,
    clients: int,
    partition: str,
    epsilon: float,
    seeds: int,
) -> Row:
    """One row: some seeds of a federation, begun by the recipe."""
    train, test, columns = split
    found = []
    for seed in range(seeds):
        shares = dealt(train.labels.astype(np.int64), clients=clients, partition=partition, seed=seed)
        data = Clients(examples=train, partition=shares, test=test, name=name, public=True, table=columns)
        federation = Federation.by_recipe(
            recipe,
            data,
            privacy=Private(epsilon=epsilon, delta=DELTAS.get(clients, 0.1 / clients)),
            run=RunOptions(randomness="seeded", seed=seed, report_every=1000),
        )
        with tempfile.TemporaryDirectory() as folder:
            accuracy = federation.train(Path(folder, "run"), progress=False).accuracy
        found.append(float("nan") if accuracy is None else accuracy)
    return Row(
        data_set=name,
        recipe=recipe,
        clients=clients,
        partition=partition,
        epsilon=epsilon,
        accuracy=statistics.fmean(found),
        standard_error=statistics.stdev(found) / seeds**0.5 if seeds > 1 else float("nan"),
        majority=float(np.bincount(test.labels).max() / len(test)),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each row and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of what is not made up")
    parser.add_argument("--set", choices=sorted(RECIPES), default="adult")
    parser.add_argument("--recipe", choices=["tables", "text", "general"])
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 100])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[8.0, 2.0, 1.0])
    parser.add_argument("--partition", choices=["iid", "sorted"], nargs="+", default=["iid", "sorted"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--json", action="store_true")
    wanted = parser.parse_args(arguments)
    if wanted.data is None and wanted.set in SETS:
        parser.error(f"--data: name the folder that holds {SETS[wanted.set][0]}")
    recipe = wanted.recipe or RECIPES[wanted.set]
    split = parts(wanted.set, wanted.data or Path(), held_out=wanted.held_out)
    for clients in wanted.clients:
        for partition in wanted.partition:
            for epsilon in wanted.epsilon:
                row = measure(
                    wanted.set,
                    split,
                    recipe=recipe,
                    clients=clients,
                    partition=partition,
                    epsilon=epsilon,
                    seeds=wanted.seeds,
                )
                shown = f"{row.accuracy:.3f} +- {row.standard_error:.3f}, majority {row.majority:.3f}"
                told = f"{clients} clients, {partition}, epsilon {epsilon:g}: {shown}"
                print(json.dumps(asdict(row)) if wanted.json else told, flush=True)


if __name__ == "__main__":
    main()
