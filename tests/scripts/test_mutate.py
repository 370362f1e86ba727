import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scripts import mutate
from scripts._common import ROOT
from scripts._mutant import Mutant, Unfit, chosen, load

MUTANTS = load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_today_s_code_and_can_be_read(mutant: Mutant) -> None:
    text = mutant.applied(ROOT)
    assert text != (ROOT / mutant.file).read_text(encoding="utf-8")
    if mutant.file.endswith(".py"):
        compile(text, mutant.file, "exec")


def test_there_are_many_and_no_two_are_the_same() -> None:
    assert len(MUTANTS) >= 120
    for told in ("name", "breaks"):
        assert Counter(getattr(mutant, told) for mutant in MUTANTS).most_common(1)[0][1] == 1
    assert len({(mutant.file, mutant.applied(ROOT)) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("test", sorted({test for mutant in MUTANTS for test in mutant.tests}))
def test_every_named_test_is_there(test: str) -> None:
    file, *classes, name = test.split("::")
    written = (ROOT / file).read_text(encoding="utf-8")
    assert all(f"class {each}:" in written for each in classes)
    assert re.search(rf"^ *def {name.partition('[')[0]}\(", written, re.MULTILINE)


def test_the_page_has_today_s_table() -> None:
    page = mutate.PAGE.read_text(encoding="utf-8")
    assert mutate.updated(page, MUTANTS) == page, "run python -m scripts.mutate --write"
    assert mutate.updated(page, MUTANTS[1:]) != page


def test_mutants_are_chosen_by_name_or_topic() -> None:
    first = MUTANTS[0]
    assert chosen(MUTANTS, []) == MUTANTS
    assert chosen(MUTANTS, [first.name]) == [first]
    assert chosen(MUTANTS, [first.topic]) == [mutant for mutant in MUTANTS if mutant.topic == first.topic]
    with pytest.raises(Unfit, match="neither"):
        chosen(MUTANTS, ["nothing of the kind"])


@pytest.mark.parametrize("old", ["no such text anywhere", "import"])
def test_a_mutant_whose_code_has_moved_is_refused(old: str) -> None:
    with pytest.raises(Unfit, match="adapt the mutant"):
        replace(MUTANTS[0], old=old).applied(ROOT)


SHOP = """
def change(paid: int, price: int) -> int:
    return paid - price
"""
TESTS = """
from shop import change

def test_change() -> None:
    assert change(5, 2) == 3
"""
SHOP_MUTANT = """
[[mutant]]
name = "{0}"
breaks = "{0}"
file = "shop.py"
old = "return paid - price"
new = "{1}"
tests = ["test_shop.py::test_change"]
"""
BUGS = {
    "killed": ("return paid", "killed"),
    "survives": ("return max(0, paid - price)", "SURVIVED"),
    "hangs": ("return change(paid, price) if True else [1 for _ in iter(int, 1)]", "killed"),
    "sleeps": ("import time; time.sleep(60); return paid", "hung"),
    "is no Python": ("return (", "broken"),
}


def shop(folder: Path) -> Path:
    """A tree with a module, a test and mutants of its own."""
    (folder / "scripts/mutants").mkdir(parents=True)
    written = "".join(SHOP_MUTANT.format(name, bug) for name, (bug, _) in BUGS.items())
    (folder / "scripts/mutants/shop.toml").write_text(f'title = "Shop"\n{written}')
    (folder / "shop.py").write_text(SHOP)
    (folder / "test_shop.py").write_text(TESTS)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return folder


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "scripts.mutate", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_each_trial_ends_as_it_should_and_the_tree_is_not_touched(tmp_path: Path) -> None:
    tree = shop(tmp_path)
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    ended = run("--tree", str(tree), "--limit", "5", "--jobs", "2", "--json")
    found = json.loads(ended.stdout)
    assert {name: verdict["outcome"] for name, verdict in found.items()} == {n: out for n, (_, out) in BUGS.items()}
    assert found["killed"]["by"] == "test_shop.py::test_change"
    assert ended.returncode == 1, "not all were killed"
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before
    assert run("--tree", str(tree), "killed").returncode == 0
    (tree / "test_shop.py").write_text(TESTS.replace("3", "4"))
    ended = run("--tree", str(tree))
    assert ended.returncode == 2
    assert "without any mutant the tests do not pass" in ended.stderr


@pytest.mark.slow
def test_a_sample_of_mutants_is_killed() -> None:
    picked = np.random.default_rng(11).choice([mutant.name for mutant in MUTANTS], 6, replace=False)
    ended = run(*picked, "--json")
    assert {verdict["outcome"] for verdict in json.loads(ended.stdout).values()} == {"killed"}, ended.stderr
