"""Every way to train is one of several: without it, clients learn the same in another way."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd import Local
from incrowd.errors import ConfigError
from incrowd.learning import CohortEngine, Model, linear, mlp
from incrowd.learning.paths import PATHS, autograd, compiled, convolved, direct, fused, together, whole_step
from incrowd.learning.paths.path import MakePath
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, SIZES, assert_close, clients, trained

DELETABLE = ("compiled", "convolved", "direct", "fused", "together", "whole_step")
COHORT = range(len(SIZES))
LOCAL = Local(learning_rate=0.3, batch_size=10)
NAMES: dict[MakePath, str] = {
    PATHS[0]: "Ahead",
    together.make: "Together",
    compiled.make: "Compiled",
    fused.make: "Fused",
    convolved.make: "Convolved",
    whole_step.make: "WholeStep",
    direct.make: "Direct",
    autograd.make: "Autograd",
}


def large() -> Model:
    return Model(
        nn.Sequential(nn.Linear(FEATURES, 1400), nn.GELU(), nn.Dropout(0.2), nn.Linear(1400, CLASSES)), fresh=True
    )


def through(*between: nn.Module) -> Model:
    return Model(nn.Sequential(nn.Linear(FEATURES, 9), *between, nn.Linear(9, CLASSES)), fresh=True)


MODELS: dict[str, tuple[Callable[[], Model], list[str]]] = {
    "small": (lambda: linear(FEATURES, CLASSES), ["Compiled"]),
    "some sparse": (lambda: mlp((FEATURES, 400, CLASSES)), ["Compiled", "Fused"]),
    "large layers": (large, ["Direct"]),
    "normed": (lambda: through(nn.LayerNorm(9), nn.GELU()), ["Fused"]),
    "any": (lambda: through(nn.LayerNorm(9), nn.Softplus()), ["Autograd"]),
}


def names(engine: CohortEngine) -> list[str]:
    return [type(path).__name__ for path in engine.paths]


def test_the_list_has_every_path_and_ends_with_the_one_for_all_models() -> None:
    assert list(NAMES) == list(PATHS)


@pytest.mark.parametrize(("make", "expected"), MODELS.values(), ids=MODELS)
def test_a_client_goes_the_first_way_that_takes_it(make: Callable[[], Model], expected: list[str]) -> None:
    assert names(CohortEngine(make(), clients(dead=0.6), LOCAL)) == expected


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("without", [one for one in PATHS if one is not autograd.make], ids=NAMES.__getitem__)
def test_without_a_path_clients_learn_the_same_to_rounding(without: MakePath, model: str) -> None:
    one, data = MODELS[model][0](), clients(dead=0.6)
    weights = one.initial(RANDOMNESS)
    left = CohortEngine(one, data, LOCAL, paths=[path for path in PATHS if path is not without])
    assert NAMES[without] not in names(left)
    found = trained(left, weights, COHORT)
    assert_close(found, trained(CohortEngine(one, data, LOCAL), weights, COHORT))
    twin = CohortEngine(one, data, LOCAL, paths=[autograd.make])
    assert names(twin) == ["Autograd"]
    assert_close(found, trained(twin, weights, COHORT))


def test_a_model_that_no_path_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"paths = 2: none of them takes this model"):
        CohortEngine(large(), clients(), LOCAL, paths=[compiled.make, fused.make])


def test_who_has_few_examples_goes_the_compiled_way_by_their_own_number() -> None:
    """An operation on one example takes longer to call than to do."""
    model = mlp((FEATURES, 1000, CLASSES))  # too many weights to be small
    engine = CohortEngine(model, clients((1, 4, 60, 200), dead=0.0), LOCAL)
    assert [type(engine._ways.path(k)).__name__ for k in range(4)] == ["Compiled", "Compiled", "Fused", "Fused"]
    more = CohortEngine(model, clients((1, 400, 400, 400), dead=0.0), LOCAL)
    assert type(more._ways.path(0)).__name__ == "Compiled"


@pytest.mark.parametrize("dead", [0.5, 0.8])
def test_the_same_path_gives_the_same_bits_whatever_other_paths_there_are(dead: float) -> None:
    model, data = mlp((FEATURES, 70, CLASSES)), clients(dead=dead)
    weights = model.initial(RANDOMNESS)
    every, some = (CohortEngine(model, data, LOCAL, paths=paths) for paths in (PATHS, PATHS[1:]))
    one, two = trained(every, weights, COHORT), trained(some, weights, COHORT)
    alike = [np.array_equal(one[k], two[k]) for k in COHORT]
    kinds = [type(every._ways.path(k)).__name__ for k in COHORT]
    assert all(same for same, kind in zip(alike, kinds, strict=True) if kind == "Fused")


@pytest.mark.slow
def test_the_files_of_all_paths_but_the_last_can_be_deleted_with_their_lines(tmp_path: Path) -> None:
    shutil.copytree(Path(incrowd.__file__).parent, tmp_path / "incrowd", ignore=shutil.ignore_patterns("__pycache__"))
    paths = tmp_path / "incrowd/learning/paths"
    for folder in ("compiled", "fused", "whole_step"):
        shutil.rmtree(paths / folder)
    for file in ("ahead.py", "convolved.py", "direct.py"):
        (paths / file).unlink()
    text = (paths / "__init__.py").read_text()
    for line in (
        *(f"    {name}.make,\n" for name in DELETABLE),
        "    ahead.before(WHOLE),\n",
        f", {', '.join(DELETABLE)}",
        "ahead, ",
    ):
        assert text.count(line) == 1
        text = text.replace(line, "")
    (paths / "__init__.py").write_text(text)
    train = (
        "import numpy as np, torch; from incrowd import Local, SeededRandomness; "
        "from incrowd.learning import ClientTensors, CohortEngine, linear; "
        "data = ClientTensors(features=torch.ones(8, 3), labels=torch.arange(8) % 2, "
        "offsets=np.array([0, 4, 8]), indices=np.arange(8)); "
        "engine = CohortEngine(linear(3, 2), data, Local(learning_rate=0.1)); "
        "chunks = engine.train(torch.zeros(8), [0, 1], randomness=SeededRandomness(seed=1), round=0); "
        "print(sum(len(chunk) for chunk in chunks), [type(path).__name__ for path in engine.paths])"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", train]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout.strip() == "2 ['Autograd']"
