"""Code of users: a loss or a module that remembers whom it was called with is refused before anything is spent.

An honest mistake: class weights that follow from running frequencies carried one client's labels to all who
came after it: eleven others moved by 1.29 clip bounds.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from incrowd import Clients, Federation, Local, Private
from incrowd.errors import ConfigError
from incrowd.estimators import PrivateClassifier
from incrowd.learning import CohortEngine, Execution, Model, as_loss
from incrowd.learning.features import from_callable, transform
from incrowd.learning.modules import remembered
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, clients, trained
from tests.learning.test_workers import add_up

pytestmark = pytest.mark.watched

REFUSED = "it remembers what it was called with"
SEEN = Counter[int]()
WEIGHTS = torch.linspace(0.5, 1.5, CLASSES)


def weighted(outputs: Tensor, labels: Tensor, seen: Counter[int]) -> Tensor:
    seen.update(labels.tolist())
    counts = torch.tensor([1.0 + seen[one] for one in range(outputs.shape[-1])])
    return mean(outputs, labels, 1 / counts)


def mean(outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """A mean of what each example gives, as records need it."""
    return (cross_entropy(outputs, labels, reduction="none") * weights[labels]).mean()


def by_a_global(outputs: Tensor, labels: Tensor) -> Tensor:
    return weighted(outputs, labels, SEEN)


def by_a_default(outputs: Tensor, labels: Tensor, seen: Counter[int] = Counter()) -> Tensor:  # noqa: B006  # the mistake
    return weighted(outputs, labels, seen)


def by_a_closure() -> Callable[[Tensor, Tensor], Tensor]:
    seen = Counter[int]()
    return lambda outputs, labels: weighted(outputs, labels, seen)


class Frequencies(nn.Module):
    """As a module of torch's keeps them."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(CLASSES))

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.seen += torch.bincount(labels, minlength=CLASSES)
        return mean(outputs, labels, 1 / self.seen)


class ByClass:
    """A class attribute, which all of its objects share."""

    seen: ClassVar[Counter[int]] = Counter()

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return weighted(outputs, labels, self.seen)


class Array:
    """Counts in NumPy, which change the loss by and by only."""

    def __init__(self) -> None:
        self.seen = np.zeros(CLASSES)

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.seen += np.bincount(labels.numpy(), minlength=CLASSES)
        much: float = self.seen.sum() > 10_000
        return cross_entropy(outputs, labels) * (1.0 + much)


def drawn(outputs: Tensor, labels: Tensor) -> Tensor:
    """Not memory, but nobody's own either."""
    return cross_entropy(outputs, labels) * np.random.default_rng().random()


REMEMBERING: dict[str, Callable[[], Any]] = {
    "a global": lambda: by_a_global,
    "a default": lambda: by_a_default,
    "a closure": by_a_closure,
    "a buffer": Frequencies,
    "a class attribute": ByClass,
    "an array": Array,
    "numbers drawn": lambda: drawn,
}


class Constant:
    """Weights that are made at the first call, of nobody's labels."""

    def __init__(self) -> None:
        self.weights: Tensor | None = None

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.weights is None:
            self.weights = WEIGHTS.clone()
        return mean(outputs, labels, self.weights)


HONEST: dict[str, Callable[[], Any]] = {
    "torch's": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "a function": lambda: lambda outputs, labels: mean(outputs, labels, WEIGHTS),
    "made at the first call": Constant,
}


def module() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Softplus(), nn.Linear(6, CLASSES))


def people() -> Clients:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, FEATURES)).astype(np.float32)
    return Clients.from_arrays(
        features, np.arange(60) % CLASSES, owner=np.arange(60) // 3, classes=CLASSES, clients=20, name="visits"
    )


PROMISES = {
    "client": Private(epsilon=2.0, delta=1e-3, rounds=1),
    "record": Private(unit="record", noise_by="party", epsilon=2.0, delta=1e-3, rounds=1, records=3),
    "record, by the server": Private(unit="record", noise_by="server", epsilon=2.0, delta=1e-3, rounds=1, records=3),
}


@pytest.mark.parametrize("name", [*REMEMBERING, *HONEST])
def test_no_loss_that_remembers_is_trained_with(name: str, tmp_path: Path) -> None:
    for unit, local in (("client", Local(learning_rate=0.1)), ("record", None)):
        privacy, folder = PROMISES[unit], tmp_path / unit
        loss = {**REMEMBERING, **HONEST}[name]()
        if name in HONEST:
            result = Federation(module(), people(), privacy=privacy, local=local, loss=loss).train(folder)
            assert len(result.rounds) == 1
            continue
        with pytest.raises(ConfigError, match=REFUSED):
            Federation(module(), people(), privacy=privacy, local=local, loss=loss).train(folder)
        assert not list(folder.glob("**/*.sqlite"))


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize(("loss", "named"), [(HONEST["a function"](), True), ("cross entropy", False), (None, False)])
def test_the_statement_names_a_loss_of_ones_own(promise: str, loss: Any, named: bool, tmp_path: Path) -> None:
    local = Local(learning_rate=0.1) if promise == "client" else None
    federation = Federation(module(), people(), privacy=PROMISES[promise], local=local, loss=loss)
    said = str(federation.train(tmp_path, progress=False).statement)
    assert ("third-party code, tried on made-up input and not verified: loss" in said) is named


@pytest.mark.parametrize("name", [*REMEMBERING, *HONEST])
def test_remembered_reaches_all_that_code_can_hold(name: str) -> None:
    value = as_loss({**REMEMBERING, **HONEST}[name]()).value
    outputs, labels = torch.zeros(3, CLASSES), torch.arange(3)
    value(outputs, labels)
    before = remembered(value)
    value(outputs, labels)
    assert (remembered(value) == before) == (name in HONEST or name == "numbers drawn")


class Late:
    """It begins to remember when it meets more examples than anybody makes up."""

    def __init__(self) -> None:
        self.seen = Counter[int]()

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return weighted(outputs, labels, self.seen if len(labels) > 5 else Counter())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loss_that_begins_to_remember_later_ends_the_round(threads: int) -> None:
    data, local = clients([4, 12, 30]), Local(learning_rate=0.1, batch_size=10)
    engine = CohortEngine(Model(module(), fresh=True), data, local, Execution(threads=threads), loss=as_loss(Late()))
    assert len(add_up(engine, [0]).norms) == 1  # the control: of few examples nothing is remembered
    with pytest.raises(ConfigError, match=REFUSED):
        add_up(engine, [0, 1, 2])


class Sharing(nn.Module):
    """A module whose copies share what they have seen."""

    seen: ClassVar[list[float]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(FEATURES, CLASSES), 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(float(x.abs().mean()))
        outputs: Tensor = self.layer(x) * float(np.mean(self.seen))
        return outputs


class Counting(Sharing):
    """The control: each client has a copy of its own, and only that changes."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        outputs: Tensor = self.layer(x)
        return outputs


@pytest.mark.parametrize("kind", [Sharing, Counting])
def test_no_module_whose_copies_share_a_memory_is_trained(kind: type[nn.Module]) -> None:
    def attempt() -> None:
        CohortEngine(Model(kind(), fresh=True), clients([4, 12]), Local(learning_rate=0.1))

    def estimated() -> None:
        data = np.random.default_rng(0).normal(size=(40, FEATURES))
        rules: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-2, "rounds": 1, "public": True, "module": kind()}
        PrivateClassifier(**rules).fit(data, np.arange(40) % CLASSES)

    for door in (attempt, estimated):
        if kind is Counting:
            door()
            continue
        with pytest.raises(ConfigError, match=REFUSED):
            door()


def test_no_feature_map_that_remembers_is_applied() -> None:
    examples, mean = people().examples, [np.zeros(FEATURES, np.float32)]

    def running(values: Any) -> Any:
        mean[0] = 0.9999999 * mean[0] + 1e-7 * values.mean(0)
        return values - mean[0]

    with pytest.raises(ConfigError, match=REFUSED):
        transform(from_callable(running, name="running"), examples)
    assert len(transform(from_callable(lambda values: values - 1, name="fixed"), examples)) == 60


def test_an_honest_loss_that_takes_no_single_example_is_trained_with() -> None:
    def of_pairs(outputs: Tensor, labels: Tensor) -> Tensor:
        if len(labels) < 2:
            raise ValueError("a pair has two")
        return mean(outputs, labels, WEIGHTS)

    data, local = clients([4, 12]), Local(learning_rate=0.1, batch_size=2)
    engine = CohortEngine(Model(module(), fresh=True), data, local, Execution(), loss=as_loss(of_pairs))
    assert len(trained(engine, engine.model.initial(RANDOMNESS), [0, 1])) == 2


class Seen:
    """It counts in a method."""

    def __init__(self) -> None:
        self.count = 0

    def loss(self, _outputs: Tensor, _labels: Tensor) -> None:
        self.count += 1


def test_what_methods_other_modules_and_variables_without_a_value_hold_is_known() -> None:
    seen = Seen()
    before = remembered(seen.loss)
    seen.loss(WEIGHTS, WEIGHTS)
    assert remembered(seen.loss) != before

    theirs = ModuleType("theirs")
    vars(theirs)["count"] = 0
    own: dict[str, Any] = {"theirs": theirs}
    exec("def uses(): return theirs.count", own)  # noqa: S102  # a function whose module is the one made here
    before = remembered(own["uses"])
    vars(theirs)["count"] = 1
    assert remembered(own["uses"]) != before

    def inner() -> object:
        return later

    empty = remembered(inner)
    later = 1
    assert (inner(), remembered(inner) != empty) == (1, True)
