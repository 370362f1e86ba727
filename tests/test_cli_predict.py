"""`incrowd predict`: the folder of a run and a table, and nothing else."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from incrowd.learning import LOSSES
from incrowd.runs.config import parse, tables
from incrowd.runs.predict import Result, predict
from incrowd.runs.run import Run
from tests.command import Command
from tests.test_federation import federation

pytestmark = pytest.mark.usefixtures("one_thread")

STATED = 'columns = {age = {range = [0, 100]}, sex = {levels = ["f", "m"]}, note = "ignore"}'
PRIVACY = "[privacy]\nepsilon = 50.0\ndelta = 1e-3\nrounds = 2\n[run]\nthreads = 1\n"


def ward(columns: str = STATED, *, classes: str = 'classes = ["no", "yes"]', more: str = "", label: str = "ill") -> Run:
    """A run on a small table, in the folder `run`."""
    header = "who;age;note;sex;ill" if "note" in columns else "who;age;height;ill"
    rows = [
        f"u{place % 6};{place};{'x' if 'note' in columns else 150 + place};"
        + (f"{'fm'[place % 2]};" if "note" in columns else "")
        + (("no", "yes")[place % 3 == 0] if "yes" in classes else str(place % 2))
        for place in range(60)
    ]
    Path("ward.csv").write_text("\n".join([header, *rows]) + "\n")
    Path("ward.toml").write_text(
        f'[data]\nname = "table"\nfile = "ward.csv"\nclient = "who"\nlabel = "{label}"\ndelimiter = ";"\nclients = 6\n'
        f"{classes}\n{columns}\n{more}\n{PRIVACY}"
    )
    return Run.create(parse(tables("ward.toml")), "run")


def test_nothing_is_needed_but_the_folder(incrowd: Command) -> None:
    """The columns lie elsewhere, labels and clients are missing, and what the model learned from is gone."""
    ward().train()
    Path("elsewhere").mkdir()
    shutil.move("run", "elsewhere/run")
    Path("ward.csv").unlink()
    Path("ward.toml").unlink()
    Path("new.csv").write_text("sex;more;age\nf;;3\nm;;90\n")
    done = incrowd("predict", "elsewhere/run", "new.csv")
    assert done.status == 0
    rows = list(csv.DictReader(done.out.splitlines()))
    assert list(rows[0]) == ["id", "prediction", "probability of no", "probability of yes"]
    features = np.array([[2 * 0.03 - 1, 1, 0], [2 * 0.9 - 1, 0, 1]], np.float32)
    state = load_file("elsewhere/run/model.safetensors")
    logits = features @ state["1.weight"].numpy().T + state["1.bias"].numpy()
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = [[float(row["probability of no"]), float(row["probability of yes"])] for row in rows]
    assert np.allclose(found, expected, atol=1e-6)
    assert [row["prediction"] for row in rows] == [("no", "yes")[one] for one in expected.argmax(1)]
    shown = incrowd("predict", "elsewhere/run", "new.csv", "--json").object()
    assert shown["predictions"] == [row["prediction"] for row in rows]
    assert shown["classes"] == ["no", "yes"]
    assert np.allclose(np.array(shown["probabilities"]), expected, atol=1e-6)
    filed = incrowd("predict", "elsewhere/run", "new.csv", "--out", "to/said.csv")
    assert (filed.out, Path("to/said.csv").read_text()) == ("to/said.csv holds 2 predictions\n", done.out)
    again = incrowd("predict", "elsewhere/run", "new.csv", "--out", "to/said.csv")
    assert again.err == "incrowd: out = 'to/said.csv': it is there already: name a new file\n"


@pytest.mark.parametrize(
    ("header", "ids"), [("sex,age,who", ["7", "u"]), ("sex,age,who,ID", ["a", "b"]), ("sex,age", ["1", "2"])]
)
def test_each_prediction_says_of_which_row_it_is(incrowd: Command, header: str, ids: list[str]) -> None:
    """By its id, or else by its client, or else by its number."""
    ward().train()
    width = header.count(",") + 1
    rows = (["f", "3", "7", "a"], ["m", "90", "u", "b"])
    Path("new.csv").write_text("\n".join([header, *(",".join(row[:width]) for row in rows)]).replace(",", ";") + "\n")
    done = incrowd("predict", "run", "new.csv")
    assert [row["id"] for row in csv.DictReader(done.out.splitlines())] == ids
    assert incrowd("predict", "run", "new.csv", "--json").object()["ids"] == ids


@pytest.mark.parametrize(
    ("classes", "more"),
    [("", ""), ("classes = 2", "[model]\nkind = 'mlp'\nhidden = [3]"), ("", "[local]\nloss = 'poisson'"),
     ("classes = 2", "[features]\nname = 'unit'"), ("classes = 2", "[local]\nloss = 'logistic'")],
)  # fmt: skip
def test_it_says_what_the_result_says(incrowd: Command, classes: str, more: str) -> None:
    """Where nothing says which columns are learned from, the run knows those of its table; the order is its own."""
    run = ward("", classes=classes, more=more)
    run.train()
    result = Result.of(run)
    numbers = np.array([[7.0, 151.0], [30.0, 170.0], [59.0, 200.0]], np.float32)
    Path("new.csv").write_text("height;ill;age\n" + "".join(f"{height};0;{age}\n" for age, height in numbers))
    found = predict(Path("run"), Path("new.csv"))
    assert np.array_equal(found.labels, result.predict(numbers).reshape(3))
    if classes:
        assert found.probabilities is not None
        assert found.probabilities == pytest.approx(result.predict_proba(numbers))
        assert found.to_json()["classes"] == ["0", "1"]
    else:
        assert found.to_csv().splitlines()[0] == "id,prediction"
        rates = replace(result, loss=LOSSES["poisson"])  # whose outputs are logarithms
        with np.errstate(over="ignore"):  # the noise may push a logarithm beyond every number
            assert np.allclose(rates.predict(numbers), np.exp(result.outputs(numbers)))
        assert len(incrowd("predict", "run", "new.csv", "--json").object()["predictions"]) == 3


def test_a_module_of_one_s_own_is_imported_once_the_run_is_over(incrowd: Command) -> None:
    Path("ward_module.py").write_text("from torch import nn\n\ndef network():\n    return nn.Linear(3, 2)\n")
    run = ward(more='[model]\nmodule = "ward_module:network"')
    Path("new.csv").write_text("sex;age\nf;3\n")
    refused = incrowd("predict", "run", "new.csv")
    assert refused.err == "incrowd: run = 'run': it is not over: go on with `incrowd resume run`\n"
    run.train()
    assert incrowd("predict", "run", "new.csv", "--json").object()["predictions"][0] in ("no", "yes")


def test_a_run_that_a_program_began_has_its_module_there(incrowd: Command) -> None:
    federation().train("given", progress=False)
    told = "a program began the run, and has the module: let it call result.predict(features)"
    assert incrowd("predict", "given", "new.csv").err == f"incrowd: run = 'given': {told}\n"
