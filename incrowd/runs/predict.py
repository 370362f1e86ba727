"""The model of a finished run in use: in a program (`Result`), and on a table from the folder alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from incrowd.algorithms.metrics import outputs_of, probabilities
from incrowd.data.clients import made_up_row
from incrowd.data.columns import Columns
from incrowd.data.examples import first, from_arrays
from incrowd.data.tables import read_features, row_ids
from incrowd.errors import ConfigError
from incrowd.learning.losses import Loss
from incrowd.learning.models import Model
from incrowd.runs.build import featured_examples, loss_of, model_of
from incrowd.runs.config import CommonSections, Config, GivenModel, read_back
from incrowd.runs.data_config import FunctionData, GivenData, Meaning, SourceData
from incrowd.runs.folder import MODEL, SUMMARY, Record, Summary, csv_of, database_in, settings_in, summary_in
from incrowd.runs.ledgers import RunLedger
from incrowd.runs.run import Run
from incrowd.runs.sources import section


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """A finished run: the released model, its quality, and its promise."""

    folder: Path
    summary: Summary
    model: Model
    loss: Loss
    settings: CommonSections
    ledgers: tuple[tuple[RunLedger, Path], ...]
    scaling: tuple[float, float] = (1.0, 0.0)
    number_of_classes: int | None = None
    table: Columns | None = None
    label_names: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Run) -> "Result":
        """The result of a run that is over."""
        data = run.work.data
        return cls(
            folder=run.folder,
            summary=summary_in(run.folder),
            model=run.work.model.loaded(load_file(run.folder / MODEL)),
            loss=run.work.loss,
            settings=run.config,
            ledgers=tuple(zip(run.work.ledgers, (own for own, *_ in run.work.places(run.folder)), strict=False)),
            scaling=(data.examples.scale, data.examples.offset),
            number_of_classes=data.examples.classes,
            table=data.table,
            label_names=data.label_names,
        )

    @classmethod
    def in_folder(cls, folder: Path) -> "Result":
        """The result of a run that learned from a table, from its folder alone."""
        config, columns = _stated_in(folder)
        example = featured_examples(config, made_up_row(columns), columns=columns)
        loss = loss_of(config.local.loss, example)
        with section("model"):
            model = model_of(config, example, loss).loaded(load_file(folder / MODEL))
        return cls(
            folder=folder,
            summary=summary_in(folder),
            model=model,
            loss=loss,
            settings=config,
            ledgers=(),
            number_of_classes=columns.number_of_classes,
            table=columns,
        )

    def __repr__(self) -> str:
        quality, left = "no test set", "" if self.left is None else f", {round(self.left, 4):g} left"
        if found := self.summary.get("verdict"):
            quality = f"{found['measure']} {found['value']:.4f} (baseline {found['baseline']:.4f})"
        return f"Result({quality}, epsilon {self.epsilon:.4g} spent{left}, folder={str(self.folder)!r})"

    @property
    def module(self) -> nn.Module:
        """The trained module, a copy, in evaluation mode."""
        return self.model.with_weights(self.model.weights)

    @property
    def statement(self) -> str:
        """The promise, its unit, and its limits."""
        return str(self.summary["statement"]["text"])

    @property
    def epsilon(self) -> float:
        """The epsilon that was spent."""
        return float(self.summary["epsilon"])

    @cached_property
    def left(self) -> float | None:
        """The epsilon that the ledger of the data has left for later runs; None where parties keep their ledgers,
        and of silos the smallest.
        """
        left = []
        for its, own in self.ledgers:
            with its.open(own) as ledger:
                left.append(max(0.0, ledger.budget.epsilon - ledger.promised().epsilon))
        return min(left, default=None)

    @property
    def accuracy(self) -> float | None:
        """The share of right labels on the test examples, if there are any and they have classes."""
        accuracy: float | None = self.summary["accuracy"]
        return accuracy

    @cached_property
    def rounds(self) -> Sequence[Record]:
        """The rounds, one after the other."""
        with database_in(self.folder) as database:
            return database.rounds()

    def predict(self, features: Any) -> NDArray[Any]:
        """The label of each example: a class, by its name where classes have names, or a number."""
        return self.labels(self.outputs(features))

    def labels(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """The label that each output stands for; with the loss "poisson" an output is the logarithm of the number."""
        if self.number_of_classes is None:
            with np.errstate(over="ignore"):  # a rate beyond every number is an infinity
                return np.exp(outputs) if self.loss.name == "poisson" else outputs
        names = self.label_names if self.table is None else self.table.classes
        labels: NDArray[Any] = probabilities(outputs).argmax(-1)
        return np.array(names)[labels] if isinstance(names, tuple) and names else labels

    def predict_proba(self, features: Any) -> NDArray[Any]:
        """The probability of each class, [examples, classes]."""
        if self.number_of_classes is None:
            raise ConfigError(field="predict_proba", value=None, remedy="the labels are numbers: use predict")
        return probabilities(self.outputs(features).astype(np.float64))

    def outputs(self, features: Any) -> NDArray[Any]:
        """The module's outputs for each example of an array. After training on a table, `features` may be another one
        with the same columns: a file or a data frame.
        """
        if self.table is not None and (isinstance(features, str | Path) or hasattr(features, "itertuples")):
            features = read_features(features, self.table)
        scale, offset = self.scaling
        examples = from_arrays(features, np.zeros(len(first(features))), scale=scale, offset=offset)
        return outputs_of(self.module, featured_examples(self.settings, examples, columns=self.table))


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """An id and a label for each row, and where labels are classes, their probabilities, [rows, classes]."""

    ids: tuple[str, ...]
    labels: NDArray[Any]
    classes: tuple[str, ...] = ()
    probabilities: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; a number that is not finite is None."""
        content: dict[str, Any] = {"ids": list(self.ids), "predictions": _finite(self.labels)}
        if self.classes:
            content |= {"classes": list(self.classes), "probabilities": [_finite(row) for row in self.probabilities]}
        return content

    def to_csv(self) -> str:
        """A table: `id`, `prediction`, and a column for the probability of each class."""
        chances = self.probabilities if self.classes else np.empty((len(self.ids), 0))
        rows = [
            [name, label, *(f"{one:.6f}" for one in row)]
            for name, label, row in zip(self.ids, self.labels, chances, strict=True)
        ]
        return csv_of(["id", "prediction", *(f"probability of {name}" for name in self.classes)], *rows)


def predict(folder: Path, table: Path) -> Predictions:
    """The predictions of the run in a folder for each row of a table, whose columns are found by their names.

    It reads the folder, the table, and the module of your own where the settings name one; the table needs neither
    labels nor clients. `Result.predict` gives the same.
    """
    result = Result.in_folder(folder)
    columns = result.table
    assert columns is not None  # noqa: S101 - it learned from a table
    ids, outputs, classes = row_ids(table, columns), result.outputs(table), columns.classes
    labels = result.labels(outputs)
    if classes is None:
        return Predictions(ids=ids, labels=labels.reshape(len(ids)))
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else classes
    return Predictions(ids=ids, labels=labels, classes=names, probabilities=probabilities(outputs.astype(np.float64)))


def _stated_in(folder: Path) -> tuple[Config, Columns]:
    """The settings of a run that is over, and the meaning of its table's columns; the features are named."""
    settings = settings_in(folder)
    config = read_back(settings["config"])
    data, given = config.data, isinstance(config.model, GivenModel)
    if isinstance(data, Meaning) and data.label and not given and (folder / SUMMARY).is_file():
        return config, replace(data.meaning(), features=tuple(settings["columns"]))
    if isinstance(data, GivenData) or (isinstance(data, Meaning) and given):
        remedy = "a program began the run, and has the module: let it call result.predict(features)"
    elif isinstance(data, FunctionData | SourceData):
        remedy = "its data come from your code, so no column is known by name: in Python, call result.predict(features)"
    elif not isinstance(data, Meaning) or not data.label:
        remedy = f"it learned from {data.name}, which is no table: in Python, call result.predict(features)"
    else:
        remedy = f"it is not over: go on with `incrowd resume {folder}`"
    raise ConfigError(field="run", value=str(folder), remedy=remedy)


def _finite(numbers: NDArray[Any]) -> list[Any]:
    if numbers.dtype.kind != "f":
        return list(numbers.tolist())
    return [one if np.isfinite(one) else None for one in numbers.tolist()]
