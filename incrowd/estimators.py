"""Private federations as scikit-learn estimators: each row, or each group of rows, is a client.

You state the public facts about private data: `name`, `clients`, `ranges`, and `classes` or `target_range`. incrowd
reads them from `public` rows, which are not protected.
"""

from collections.abc import Sequence
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

from incrowd.data.clients import MEASURED, Clients
from incrowd.data.examples import Examples, from_arrays, placed
from incrowd.errors import ConfigError, DataError
from incrowd.federation import Federation
from incrowd.learning.models import mlp
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.runs.config import Private, RunOptions
from incrowd.runs.ledgers import declare_public
from incrowd.runs.predict import Result
from incrowd.runs.sources import processors
from incrowd.settings import Local

ValueRange = tuple[float, float]

_STATED = {
    "name": 'say what the ledger of the data is to know them by, say name = "visits"; or public = True',
    "clients": "how many clients private data have is never counted: state a public number; or public = True",
    "ranges": "state the lowest and the highest value of the features, one pair or one for each; or public = True",
    "classes": "the labels of private data are never collected: state them in order; or public = True",
    "target_range": "state the lowest and the highest label; or public = True, and labels are learned as they are",
}
"""The public facts of private data, and the remedy for a missing one."""


@dataclass(kw_only=True, eq=False, repr=False)
class _PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """The settings of both estimators, a fit that runs a private federation, and outputs.

    A dataclass stores its arguments by name, as scikit-learn requires.
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
        """The privacy statement of the run."""
        check_is_fitted(self)
        return str(self.result_.statement)

    def _fit(self, x: NDArray[Any], groups: Any, labels: NDArray[Any], classes: int | None) -> None:
        stated: dict[str, Any] = {"public": self.public, "clients": self.clients}
        stated |= {} if self.name is None else {"name": self.name}
        data = Clients.from_arrays(self._scaled(x), labels, owner=groups, classes=classes, **stated)
        sampled: dict[str, Any] = {} if self.cohort is None else {"cohort": self.cohort, "sampling": "poisson"}
        federation = Federation(
            self.module if self.module is not None else mlp((x.shape[1], *self.hidden, classes or 1)),
            replace(data, originals=_originals(x, labels)),
            loss=None if classes is not None else "squared",
            local=Local(learning_rate=self.learning_rate, batch_size=self.batch_size, epochs=self.epochs),
            privacy=Private(
                epsilon=self.epsilon,
                delta=self.delta,
                rounds=self.rounds,
                clip=NormalisedClip(clip_norm=self.clip_norm),
                released_before=self.released_before,
                **sampled,
            ),
            run=RunOptions(threads=processors() if self.n_jobs == -1 else self.n_jobs or 1, **self._seed()),
        )
        with TemporaryDirectory(prefix="incrowd-") as ours:
            folder = Path(ours) / "run" if self.folder is None else self.folder
            self.result_: Result = federation.train(folder, progress=self.verbose)
            self.n_iter_ = len(self.result_.rounds)

    def _outputs(self, x: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        features = validate_data(self, x, reset=False)
        return np.asarray(self.result_.outputs(self._scaled(features)), np.float64)

    def _check_scored(self, x: Any) -> None:
        """Declare the rows of an exact score public: private rows are refused, now and later."""
        check_is_fitted(self)
        if not self.public:
            features = validate_data(self, x, reset=False)
            remedy = f"a score on them is exact, and not paid for: score on public rows; or {MEASURED}"
            declare_public("the rows of a score", _originals(features, np.zeros(len(features))), remedy=remedy)

    def _check_stated(self, *fields: str) -> None:
        """Refuse private data without a public fact, and a seed, which could remove the noise."""
        if self.public:
            return
        for field in ("name", "clients", "ranges", *fields):
            if getattr(self, field) is None:
                raise ConfigError(field=field, value=None, remedy=_STATED[field])
        if self.random_state is not None:
            remedy = "who knows it can remove the noise: leave it out; or public = True"
            raise ConfigError(field="random_state", value=self.random_state, remedy=remedy)

    def _scaled(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """The features on the scale from -1 to 1, or unchanged without ranges."""
        if self.ranges is None and x.dtype == np.uint8:
            raise ConfigError(field="ranges", value=None, remedy="give (0, 255) for bytes of pictures, or floats")
        pairs = f"give one pair (lowest, highest), or one for each of the {x.shape[1]} features"
        return _scaled("ranges", x, self.ranges, shapes=((2,), (x.shape[1], 2)), remedy=pairs)

    def _seed(self) -> dict[str, Any]:
        state = self.random_state
        if state is None:
            return {}
        seed = state if isinstance(state, int) else int(check_random_state(state).randint(2**31 - 1))
        return {"randomness": "seeded", "seed": seed}


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, _PrivateEstimator):  # type: ignore[misc]  # sklearn has no types
    """A classifier from one private federation: linear, a perceptron with `hidden` layers, or a `module`.

    `groups` in `fit` are the owners of the rows; the default makes each row a client. `ranges` has one pair, or one for
    each feature, and scales features to -1 .. 1; values beyond are clipped. `classes` are the labels in order. `folder`
    keeps the run: the same call with the same data resumes it. `cohort` is the expected number of clients in a round,
    and `clip_norm` the length of each contribution. `n_jobs` is the number of threads, -1 for all processors.

    After `fit`: `classes_`, `n_features_in_`, `feature_names_in_` (of a data frame), `n_iter_` (the rounds), `result_`
    (`incrowd.Result`) and `statement_`.

    Guarantee: incrowd computes nothing from private data outside the statement. Each fit, also of a grid search or a
    cross-validation, is charged to the ledger `name`, and a spent budget raises `BudgetExceeded`. Rows of a `score`
    become public, and no later fit protects them: compare settings on public data.
    """

    classes: Sequence[Any] | None = None

    def fit(self, X: Any, y: Any, groups: Any = None) -> "PrivateClassifier":
        """Train one private federation with the clients `groups`, charged to the ledger of the data."""
        self._check_stated("classes")
        x, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y) if self.classes is None else np.asarray(self.classes)
        if len(self.classes_) < 2:
            raise DataError(f"there is {len(self.classes_)} class, so there is nothing to learn: give at least two")
        self._fit(x, groups, *placed(y, self.classes_.tolist()))
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
        """The accuracy on public rows."""
        self._check_scored(X)
        return float(super().score(X, y, sample_weight))


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, _PrivateEstimator):  # type: ignore[misc]  # sklearn has no types
    """The same for numeric labels, by least squares: see `PrivateClassifier`.

    `target_range` replaces `classes`. It scales labels to -1 .. 1, and labels beyond are clipped.
    """

    target_range: ValueRange | None = None

    def fit(self, X: Any, y: Any, groups: Any = None) -> "PrivateRegressor":
        """See `PrivateClassifier.fit`."""
        self._check_stated("target_range")
        x, y = validate_data(self, X, y, y_numeric=True)
        pair = "give the lowest and the highest"
        self._fit(x, groups, _scaled("target_range", y, self.target_range, shapes=((2,),), remedy=pair), None)
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
        self._check_scored(X)
        return float(super().score(X, y, sample_weight))


def _originals(x: NDArray[Any], labels: NDArray[Any]) -> Examples:
    """Rows before scaling, by which a ledger recognises them with any ranges."""
    largest = np.finfo(np.float32).max
    return from_arrays(np.clip(x.astype(np.float64), -largest, largest), labels)


def _scaled(
    field: str, values: NDArray[Any], ranges: Any, *, shapes: tuple[tuple[int, ...], ...], remedy: str
) -> NDArray[np.float32]:
    """Values on the scale from -1 to 1, clipped to their ranges; unchanged without ranges."""
    if ranges is None:
        with np.errstate(over="ignore"):
            floats = np.asarray(values, np.float32)
        if not np.isfinite(floats).all():
            raise DataError("a number is beyond every float32: state ranges, and numbers become their places there")
        return floats
    ends = np.asarray(ranges, np.float64)
    if ends.shape not in shapes:
        raise ConfigError(field=field, value=ranges, remedy=remedy)
    low, high = ends.T
    if not (np.isfinite(ends).all() and np.all(low < high)):
        remedy = "give the lowest and the highest value, in this order"
        raise ConfigError(field=field, value=ends.tolist(), remedy=remedy)
    inside = np.clip(np.asarray(values, np.float64), low, high)
    return np.asarray(2 * (inside - low) / (high - low) - 1, np.float32)
