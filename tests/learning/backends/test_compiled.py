"""Steps that torch compiles: the same numbers, chosen by facts, and nothing is lost where it cannot be done."""

import logging
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from incrowd import Local
from incrowd.errors import ConfigError
from incrowd.learning import CohortEngine, Execution, Model, backends
from incrowd.learning.compiler import compiler_there, pays
from incrowd.learning.rewritten import Unrolled, unroll
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, assert_close, clients, trained
from tests.learning.own_models import CASES

ALWAYS = Execution(compile="always")
LOCAL = Local(learning_rate=0.3, batch_size=10)
SIZES = (12, 7, 30, 31)


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    if not compiler_there():
        why = "there is no C++ compiler: apt-get install g++"
        (pytest.fail if os.environ.get("INCROWD_ALL_TESTS") else pytest.skip)(why)


def small() -> Model:
    return Model(
        nn.Sequential(nn.Linear(FEATURES, 6), nn.LayerNorm(6), nn.Softplus(), nn.Linear(6, CLASSES)), fresh=True
    )


def names(engine: CohortEngine) -> list[str]:
    return [type(path).__name__ for path in engine.backends]


ALL = Local(learning_rate=0.3, batch_size=10, momentum=0.5, weight_decay=0.1, proximal=0.3, label_shares=1.0, epochs=2)


@pytest.fixture(scope="module")
def engine() -> CohortEngine:
    with torch.random.fork_rng():
        return CohortEngine(small(), clients(SIZES), ALL, ALWAYS)


def test_clients_learn_what_autograd_teaches_them(engine: CohortEngine) -> None:
    model = engine.model
    weights = model.initial(RANDOMNESS)
    assert names(engine) == ["Compiled", "Loop"]
    assert list(engine._choice._place) == [0, 1, 0, 0]  # who has no full batch has nothing to compile for
    found = trained(engine, weights, range(4))
    left = CohortEngine(model, clients(SIZES), ALL, backends=[backends.loop.make])
    assert_close(found, trained(left, weights, range(4)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_modules_as_people_have_them_learn_the_same_when_compiled(name: str) -> None:
    case = CASES[name]
    model, data, local = case.model(), case.clients((12, 3, 9)), Local(learning_rate=0.2, batch_size=5, epochs=2)
    engine = CohortEngine(model, data, local, ALWAYS, loss=case.loss)
    left = CohortEngine(model, data, local, loss=case.loss, backends=[backends.loop.make])
    assert_close(trained(engine, model.weights, range(3)), trained(left, model.weights, range(3)))


class Helper:
    calls = 0

    def __init__(self) -> None:
        self.me = self


class Own(nn.Module):
    """A module of the user's own that does something more."""

    def __init__(self, more: Callable[["Own", Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.more = nn.Linear(FEATURES, CLASSES), more
        self.seen: Any = {"calls": [0], "kinds": {1}, "name": "own"}
        self.helper = Helper()

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self, self.layer(x))


def _remember(module: Own, x: Tensor) -> Tensor:
    module.seen["calls"].append(len(x))
    return x


def _remember_elsewhere(module: Own, x: Tensor) -> Tensor:
    module.helper.calls += 1
    return x


def _branch(_module: Own, x: Tensor) -> Tensor:
    return x if float(x.detach().sum()) > 0 else 2 * x


def _differ(_module: Own, x: Tensor) -> Tensor:
    return 3 * x if torch.compiler.is_compiling() else x


LEFT: dict[str, tuple[Callable[[Own, Tensor], Tensor], str]] = {
    "remembers": (_remember, "it remembers something"),
    "remembers elsewhere": (_remember_elsewhere, "it remembers something"),
    "looks at numbers": (_branch, ""),
    "differs": (_differ, "not the plain one"),
}


@pytest.mark.parametrize(
    "name", [*(one for one in LEFT if one != "differs"), pytest.param("differs", marks=pytest.mark.slow)]
)
def test_what_cannot_be_compiled_is_left_to_autograd_and_why_is_said_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    more, why = LEFT[name]
    model, data = Model(Own(more)), clients(SIZES)
    with caplog.at_level(logging.WARNING):
        engine = CohortEngine(model, data, LOCAL, ALWAYS, backends=[backends.compiled.make, backends.loop.make])
    assert names(engine) == ["Loop"]
    said = [record.getMessage() for record in caplog.records if record.name.startswith("incrowd")]
    assert [why in one for one in said] == [True]
    assert "steps of Own are not compiled: " in caplog.text
    assert len(trained(engine, model.weights, range(4))) == 4


def test_without_a_compiler_or_fixed_batches_or_with_masks_nothing_is_tried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data, dropping = clients(SIZES), Model(nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.5)))
    for model, local in (
        (small(), Local(learning_rate=0.1)),
        (dropping, LOCAL),
        (small(), Local(learning_rate=0.1, batch_size=99)),
    ):
        assert "Compiled" not in names(CohortEngine(model, data, local, ALWAYS))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "Compiled" not in names(CohortEngine(small(), data, LOCAL, ALWAYS))
    assert "not compiled" not in caplog.text


def test_it_is_compiled_where_the_run_is_long_enough_for_the_client_s_own_batches() -> None:
    full, calls = np.array([0, 1, 50]), []

    def step() -> None:
        calls.append([torch.ones(3) + 1 for _ in range(10)])

    def of(contributions: float) -> list[bool]:
        found: list[bool] = pays(Execution(contributions=contributions), full, step).tolist()
        return found

    assert of(0) == [False] * 3
    assert not calls
    assert [of(count) for count in (1e3, 1e5, 1e7)] == [[False] * 3, [False, False, True], [False, True, True]]
    assert pays(Execution(compile="never", contributions=1e9), full, step).sum() == 0
    assert pays(ALWAYS, full, step).tolist() == [False, True, True]


def test_large_products_and_very_many_operations_are_not_worth_it() -> None:
    execution, full, large = Execution(contributions=1e12), np.array([5]), torch.ones(300, 300)
    assert not pays(execution, full, lambda: large @ large)[0]
    assert not pays(execution, full, lambda: [torch.ones(1).neg_() for _ in range(1100)])[0]


def test_an_unknown_way_to_compile_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"compile = 'yes': give one of auto, never, always"):
        Execution(compile="yes")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ConfigError, match="contributions"):
        Execution(contributions=-1.0)


RECURRENT: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_layer_written_out_is_torch_s(kind: str, first: bool, both: bool, bias: bool, layers: int) -> None:
    make, others = RECURRENT[kind]
    theirs = make(5, 4, layers, bias=bias, batch_first=first, bidirectional=both, **others)
    x, h, c = torch.randn(3, 3, 5), *torch.randn(2, layers * (1 + both), 3, 4)
    given = (h, c) if make is nn.LSTM else h
    expected = [flat(theirs(x)), flat(theirs(x, given))]
    unroll(theirs)
    assert isinstance(theirs, Unrolled)
    for found, torch_s in zip([flat(theirs(x)), flat(theirs(x, given))], expected, strict=True):
        assert len(found) == 2 + (make is nn.LSTM)
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, torch_s, strict=True))
    assert not torch.allclose(expected[0][0], expected[1][0], atol=1e-6)


def flat(results: Any) -> list[Tensor]:
    """The outputs, and each of the last states."""
    outputs, last = results
    return [outputs, *(last if isinstance(last, tuple) else [last])]


@pytest.mark.parametrize("kind", RECURRENT)
def test_sequences_that_are_long_or_alone_are_not_written_out(kind: str) -> None:
    make, others = RECURRENT[kind]
    module = make(5, 4, **others)
    unroll(module)
    for x in (torch.ones(70, 2, 5), torch.ones(7, 5)):
        with pytest.raises(ValueError, match="written out"):
            module(x)


def test_an_lstm_that_projects_stays_torch_s() -> None:
    module = nn.Sequential(nn.LSTM(5, 4, proj_size=2), nn.LSTM(2, 4))
    unroll(module)
    assert [type(part) for part in module] == [nn.LSTM, Unrolled]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer, inputs by name", "GRU on tokens", "LSTM on tokens"])
def test_compiled_contributions_have_the_same_bits_in_every_company(name: str) -> None:
    case = CASES[name]
    local, found = Local(learning_rate=1.0, batch_size=4, epochs=20), []
    for company in ((9,), (9, 1, 40, 8), (9, *[12] * 12)):
        engine = CohortEngine(case.model(), case.clients(company), local, ALWAYS, loss=case.loss)
        assert names(engine)[0] == "Compiled"
        found.append(trained(engine, case.model().weights, range(len(company)))[0])
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert np.abs(found[0]).max() > 0
