"""A private federation in the shape of a scikit-learn estimator.

Each row, or each group of rows, is one client, who is protected whole. What private data may not tell is stated:
`name` (what their ledger knows them by), `clients` (their public number), `ranges` (of the features), and `classes`,
or the `target_range` of numbers. Where data are `public`, nobody is protected and all of that may be left out.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from incrowd.data import Clients, Examples, from_arrays
from incrowd.data.arrays import placed
from incrowd.data.clients import MEASURED
from incrowd.errors import ConfigError, DataError
from incrowd.federation import Federation
from incrowd.learning import mlp
from incrowd.runs.build import processors
from incrowd.runs.clip_config import NormalisedSection
from incrowd.runs.config import Private, RunOptions
from incrowd.runs.identity import declare_public
from incrowd.runs.result import Result
from incrowd.settings.local import Local

ValueRange = tuple[float, float]

_STATED = {
    "name": 'say what the ledger of the data is to know them by, say name = "visits"; or public = True',
    "clients": "how many clients private data have is never counted: state a public number; or public = True",
    "ranges": "state the lowest and the highest value of the features, one pair or one for each; or public = True",
    "classes": "the labels of private data are never collected: state them in order; or public = True",
    "target_range": "state the lowest and the highest label; or public = True, and labels are learned as they are",
}
"""What private data may not tell, and so has to be stated."""


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """What both estimators are: settings, a fit that is a private federation, and outputs.

    The constructor of a dataclass does what scikit-learn asks of one: it stores its arguments, by their names.
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    rounds: int = 20
    cohort: float | None = None
    clip_norm: float = 0.2
    learning_rate: float = 0.1
    batch_size: int | None = None
    epochs: int = 1
    hidden: Sequence[int] = ()
    module: nn.Module | None = None
    folder: Path | str | None = None
    name: str | None = None
    clients: int | None = None
    public: bool = False
    released_before: bool = False
    ranges: ValueRange | Sequence[ValueRange] | None = None
    n_jobs: int | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: bool = False

    @property
    def statement_(self) -> str:
        """What is promised, to whom, and what is not."""
        check_is_fitted(self)
        return str(self.result_.statement)

    @abstractmethod
    def _encoded(self, y: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
        """The labels as they are learned, and how many classes there are, if any."""

    def _fit(self, x: NDArray[Any], y: NDArray[Any], groups: Any) -> None:
        labels, classes = self._encoded(y)
        stated: dict[str, Any] = {"public": self.public, "clients": self.clients}
        data = Clients.from_arrays(
            self._scaled(x),
            labels,
            owner=np.arange(len(x)) if groups is None else groups,
            classes=classes,
            **stated | ({} if self.name is None else {"name": self.name}),
        )
        data = replace(data, originals=_originals(x, labels))
        module = self.module if self.module is not None else mlp((x.shape[1], *self.hidden, classes or 1))
        sampled: dict[str, Any] = {} if self.cohort is None else {"cohort": self.cohort, "sampling": "poisson"}
        federation = Federation(
            module,
            data,
            loss=None if classes is not None else "squared",
            local=Local(learning_rate=self.learning_rate, batch_size=self.batch_size, epochs=self.epochs),
            privacy=Private(
                epsilon=self.epsilon,
                delta=self.delta,
                rounds=self.rounds,
                clip=NormalisedSection(clip_norm=self.clip_norm),
                released_before=self.released_before,
                **sampled,
            ),
            run=RunOptions(plot=False, threads=self._threads(), **self._seed()),
        )
        with ExitStack() as kept:
            folder = self.folder
            if folder is None:
                folder = Path(kept.enter_context(TemporaryDirectory(prefix="incrowd-"))) / "run"
            self.result_: Result = federation.train(folder, progress=self.verbose)
            self.n_iter_ = len(self.result_.rounds)

    def _outputs(self, x: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        features = validate_data(self, x, reset=False)
        return np.asarray(self.result_.outputs(self._scaled(features)), np.float64)

    def _check_scored(self, x: Any) -> None:
        """Rows on which a score is shown are public: refused where they are known as somebody's, and nobody's later."""
        if not self.public:
            features = validate_data(self, x, reset=False)
            remedy = f"a score on them is exact, and not paid for: score on public rows; or {MEASURED}"
            declare_public("the rows of a score", _originals(features, np.zeros(len(features))), remedy=remedy)

    def _check_stated(self, *fields: str) -> None:
        """What private data may not tell is stated, and no seed removes the noise."""
        if self.public:
            return
        for field in ("name", "clients", "ranges", *fields):
            if getattr(self, field) is None:
                raise ConfigError(field=field, value=None, remedy=_STATED[field])
        if self.random_state is not None:
            remedy = "who knows it can remove the noise: leave it out; or public = True"
            raise ConfigError(field="random_state", value=self.random_state, remedy=remedy)

    def _scaled(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """The places of the features in their ranges, from -1 to 1; as they are where no ranges are stated."""
        if self.ranges is None:
            if x.dtype == np.uint8:
                raise ConfigError(field="ranges", value=None, remedy="give (0, 255) for bytes of pictures, or floats")
            with np.errstate(over="ignore"):
                return _finite(np.asarray(x, np.float32))
        ends = np.asarray(self.ranges, np.float64)
        if ends.shape not in ((2,), (x.shape[1], 2)):
            remedy = f"give one pair (lowest, highest), or one for each of the {x.shape[1]} features"
            raise ConfigError(field="ranges", value=self.ranges, remedy=remedy)
        return _placed(x, *_ends("ranges", ends.T)).astype(np.float32)

    def _threads(self) -> int:
        if self.n_jobs is None:
            return 1
        return processors() if self.n_jobs == -1 else self.n_jobs

    def _seed(self) -> dict[str, Any]:
        if self.random_state is None:
            return {}
        state = self.random_state
        seed = state if isinstance(state, int) else int(check_random_state(state).randint(2**31 - 1))
        return {"randomness": "seeded", "seed": seed}


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]  # sklearn has no types
    """A classifier that one private federation trains: linear, a perceptron with these `hidden` layers, or a `module`.

    `groups` in `fit` says whose each row is; without them each row is a client of its own. `ranges` are stated, one
    pair or one for each feature: a feature becomes its place there, from -1 to 1, and what lies beyond is taken for the
    nearest end. `classes` are stated in order, or, of `public` data, found in the labels. `folder` keeps the run, so
    that a fit that was cut off goes on when it is called again with the same data; without it nothing is kept but the
    ledger. With `cohort`, so many clients are sampled for a round; `clip_norm` is how long the
    contribution of each is made, and so how far a round may go. `n_jobs` is the number of threads, -1 all.

    After `fit`: `classes_`, `n_features_in_`, `feature_names_in_` (of a data frame), `n_iter_` (the rounds), `result_`
    (`incrowd.Result`) and `statement_`.

    Guarantee: of data that are not `public`, nothing is collected or computed but what the statement covers. Every fit
    is charged to the ledger of the data, known by `name`: a grid search, or cross-validation, pays for each of its
    fits, and ends with `BudgetExceeded` when the budget is spent; and rows on which a `score` was shown are public from
    then on, and no later fit protects them. So compare settings on public data. `released_before` is as in `Private`.

    Edge cases: private data of which something is not stated, or with a `random_state`, whose noise could be removed,
    are a `ConfigError` before anything is spent; a label that is no stated class is a `DataError`.
    """

    classes: Sequence[Any] | None = None

    def fit(self, X: Any, y: Any, groups: Any = None) -> "PrivateClassifier":
        """Train one private federation, whose clients are `groups` of rows; it is charged to the ledger of the data."""
        self._check_stated("classes")
        x, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y) if self.classes is None else np.asarray(self.classes)
        if len(self.classes_) < 2:
            raise DataError(f"there is {len(self.classes_)} class, so there is nothing to learn: give at least two")
        self._fit(x, y, groups)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of each row."""
        check_is_fitted(self)
        labels: NDArray[Any] = self.classes_[self._outputs(X).argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, [rows, classes]."""
        logits = self._outputs(X)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy on public rows. Edge cases: those of private data are refused (`LedgerMismatch`)."""
        check_is_fitted(self)
        self._check_scored(X)
        return float(super().score(X, y, sample_weight))

    def _encoded(self, y: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
        return placed(y, self.classes_.tolist())


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]  # sklearn has no types
    """The same for numbers, by least squares: see `PrivateClassifier`.

    Instead of `classes` it has a `target_range`, the lowest and the highest label: what is learned is the label's place
    there, from -1 to 1, and what lies beyond is taken for the nearest end. Of `public` data it may be left out.
    """

    target_range: ValueRange | None = None

    def fit(self, X: Any, y: Any, groups: Any = None) -> "PrivateRegressor":
        """See `PrivateClassifier.fit`."""
        self._check_stated("target_range")
        x, y = validate_data(self, X, y, y_numeric=True)
        self._fit(x, y, groups)
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """The number of each row."""
        outputs = self._outputs(X).reshape(-1)
        if self.target_range is None:
            return outputs
        low, high = self.target_range
        return np.asarray(low + (outputs + 1) / 2 * (high - low))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² on public rows; see `PrivateClassifier.score`."""
        check_is_fitted(self)
        self._check_scored(X)
        return float(super().score(X, y, sample_weight))

    def _encoded(self, y: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
        if self.target_range is None:
            return _finite(np.asarray(y, np.float32)), None
        ends = np.asarray(self.target_range, np.float64)
        if ends.shape != (2,):
            raise ConfigError(field="target_range", value=self.target_range, remedy="give the lowest and the highest")
        return _placed(y, *_ends("target_range", ends)).astype(np.float32), None


def _originals(x: NDArray[Any], labels: NDArray[Any]) -> Examples:
    """Rows as a ledger knows them again, whatever ranges are stated."""
    largest = np.finfo(np.float32).max
    return from_arrays(np.clip(x.astype(np.float64), -largest, largest), labels)


def _ends(field: str, ends: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    low, high = ends
    if not (np.isfinite(ends).all() and np.all(low < high)):
        remedy = "give the lowest and the highest value, in this order"
        raise ConfigError(field=field, value=ends.T.tolist(), remedy=remedy)
    return low, high


def _placed(values: NDArray[Any], low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where values are between two ends, from -1 to 1; what lies beyond is taken for the nearest end."""
    return np.asarray(2 * (np.clip(np.asarray(values, np.float64), low, high) - low) / (high - low) - 1)


def _finite(values: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(values).all():
        raise DataError("a number is beyond every float32: state ranges, and numbers become their places there")
    return values
