"""The contract of every backend: clients learn what a plain loop teaches them, in the same bits in any company."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import incrowd
from incrowd import Local
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors, CohortEngine, Execution, Model, backends, linear, mlp, small_cnn
from incrowd.learning.backends import BACKENDS, fast
from incrowd.learning.backends.backend import MakeBackend
from incrowd.learning.compiler import compiler_there
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained, twin

SIZES = (9, 23, 1, 14)
LOCAL = Local(learning_rate=0.1, batch_size=8, epochs=2)
MAKES: dict[str, tuple[MakeBackend, Execution]] = {
    "vectorized": (backends.vectorized.side_by_side, Execution(chunk=2)),
    "fast": (fast.make, Execution()),
    "compiled step": (backends.compiled.make, Execution(compile="always")),
    "loop": (backends.loop.make, Execution()),
}


def through(*between: nn.Module) -> Model:
    return Model(nn.Sequential(nn.Linear(FEATURES, 70), *between, nn.Linear(70, CLASSES)), fresh=True)


def frozen() -> Model:
    layers = nn.Sequential(nn.Linear(FEATURES, 70), nn.Tanh()).requires_grad_(False)
    return Model(nn.Sequential(*layers, nn.Linear(70, CLASSES)))


def pictures() -> ClientTensors:
    data, generator = clients(SIZES), np.random.default_rng(1)
    features = generator.integers(0, 256, (len(data.features), 16, 16)).astype(np.uint8)
    return replace(data, features=torch.from_numpy(features))


MODELS: dict[str, tuple[Callable[[], Model], Callable[[], ClientTensors]]] = {
    "linear": (lambda: linear(FEATURES, CLASSES), lambda: clients(SIZES, dead=0.6)),
    "perceptron": (lambda: mlp((FEATURES, 70, CLASSES)), lambda: clients(SIZES, real=True, dead=0.1)),
    "bent": (lambda: through(nn.Tanh()), lambda: clients(SIZES, offset=-0.3)),
    "normed": (lambda: through(nn.LayerNorm(70), nn.Tanh()), lambda: clients(SIZES)),
    "dropout": (lambda: through(nn.Dropout(0.2), nn.ELU()), lambda: clients(SIZES)),
    "convolutions": (lambda: small_cnn(side=16, outputs=CLASSES), pictures),
    "frozen": (frozen, lambda: clients(SIZES)),
}
TAKES = {"fast": [*list(MODELS)[:3], "convolutions"], "compiled step": ["normed"]}
PAIRS = [(backend, model) for backend in MAKES for model in TAKES.get(backend, MODELS)]


TERMS = {"plain": {}, "all": {"momentum": 0.5, "weight_decay": 0.1, "proximal": 0.3}}


@pytest.mark.parametrize(
    ("backend", "model", "terms"),
    [
        pytest.param(*pair, terms, marks=pytest.mark.slow if (pair[0], terms) == ("compiled step", "plain") else ())
        for pair in PAIRS
        for terms in TERMS
    ],
)
def test_clients_learn_what_a_plain_loop_teaches_in_the_same_bits_in_any_company(
    backend: str, model: str, terms: str
) -> None:
    make, execution = MAKES[backend]
    if backend == "compiled step" and not compiler_there():
        pytest.skip("there is no C++ compiler: apt-get install g++")
    one, data, local = MODELS[model][0](), MODELS[model][1](), LOCAL.replaced(**TERMS[terms])
    weights, everyone = one.initial(RANDOMNESS), range(len(SIZES))
    others = [backends.loop.make] if backend in ("vectorized", "compiled step") else []  # for clients that they leave
    engine = CohortEngine(one, data, local, execution, backends=[make, *others])
    found = trained(engine, weights, everyone)
    assert_close(found, twin(one, data, local, weights, everyone))
    for cohort in (everyone, [3, 1], [1]):
        again = trained(engine, weights, cohort)
        assert all(np.array_equal(again[client], found[client]) for client in cohort)


def test_the_list_has_every_backend_and_ends_with_the_one_for_all_models() -> None:
    assert list(BACKENDS) == [backends.vectorized.make, fast.make, backends.compiled.make, backends.loop.make]


@pytest.mark.parametrize(
    ("model", "expected"),
    {"linear": "Fast", "perceptron": "Fast", "convolutions": "Fast", "frozen": "Loop", "dropout": "Loop"}.items(),
)
def test_a_client_goes_the_first_way_that_takes_it(model: str, expected: str) -> None:
    engine = CohortEngine(MODELS[model][0](), MODELS[model][1](), LOCAL)
    assert [type(one).__name__ for one in engine.backends] == [expected]


def test_a_model_that_no_path_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"backends = 1: none of them takes this model"):
        CohortEngine(MODELS["dropout"][0](), clients(), LOCAL, backends=[fast.make])


@pytest.mark.slow
def test_the_files_of_all_paths_but_the_last_can_be_deleted_with_their_names(tmp_path: Path) -> None:
    shutil.copytree(Path(incrowd.__file__).parent, tmp_path / "incrowd", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "incrowd/learning/backends"
    shutil.rmtree(folder / "fast")
    for name in ("vectorized", "compiled"):
        (folder / f"{name}.py").unlink()
    text = (folder / "__init__.py").read_text()
    for line, left in {
        **{f"{name}.make, ": "" for name in ("fast", "vectorized", "compiled")},
        "loop.make)": "loop.make,)",
        "import compiled, fast, loop, vectorized": "import loop",
    }.items():
        assert text.count(line) == 1
        text = text.replace(line, left)
    (folder / "__init__.py").write_text(text)
    train = (
        "import numpy as np, torch; from incrowd import Local, SeededRandomness; "
        "from incrowd.learning import ClientTensors, CohortEngine, linear; "
        "data = ClientTensors(features=torch.ones(8, 3), labels=torch.arange(8) % 2, "
        "offsets=np.array([0, 4, 8]), indices=np.arange(8)); "
        "engine = CohortEngine(linear(3, 2), data, Local(learning_rate=0.1)); "
        "chunks = engine.train(torch.zeros(8), [0, 1], randomness=SeededRandomness(seed=1), round=0); "
        "print(sum(len(chunk) for chunk in chunks), [type(one).__name__ for one in engine.backends])"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", train]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout.strip() == "2 ['Loop']", done.stderr
