"""What a finished run's model says about a table, from the folder of the run alone."""

import csv
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load
from torch import nn

from incrowd.algorithms.metrics import outputs_of, probabilities
from incrowd.data import Columns, Examples, read_features
from incrowd.data.examples import Labels
from incrowd.data.tables import row_ids
from incrowd.errors import ConfigError
from incrowd.runs.build import featured_examples, loss_of, model_of, section
from incrowd.runs.config import CommonSections, Config, GivenModel
from incrowd.runs.data_config import FunctionData, GivenData, Meaning
from incrowd.runs.folder import MODEL, SUMMARY, settings_in
from incrowd.runs.onnx_file import onnx_of
from incrowd.runs.settings import read_back
from incrowd.runs.silo_config import SiloConfig

CLASS = "probability of "


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """An id and a label for each row, and where labels are classes, how probable each is, [rows, classes]."""

    ids: tuple[str, ...]
    labels: NDArray[Any]
    classes: tuple[str, ...] | None = None
    probabilities: NDArray[np.float64] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data. Edge cases: a number that is not finite is None, for which JSON has a word."""
        content: dict[str, Any] = {"ids": list(self.ids), "predictions": _finite(self.labels)}
        if self.classes is not None and self.probabilities is not None:
            content |= {"classes": list(self.classes), "probabilities": [_finite(row) for row in self.probabilities]}
        return content

    def to_csv(self) -> str:
        """A table: `id`, `prediction`, and a column for the probability of each class."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["id", "prediction", *(f"{CLASS}{name}" for name in self.classes or ())])
        chances = np.empty((len(self.labels), 0)) if self.probabilities is None else self.probabilities
        writer.writerows(
            [name, label, *(f"{one:.6f}" for one in row)]
            for name, label, row in zip(self.ids, self.labels, chances, strict=True)
        )
        return text.getvalue()


def labels_of(outputs: NDArray[Any], *, loss: str, names: tuple[str, ...] | None, classes: int | None) -> NDArray[Any]:
    """The label that each output stands for: a class, by its name where classes have names, or a number.

    Edge cases: with the loss "poisson" an output is the logarithm of the number.
    """
    if classes is None:
        with np.errstate(over="ignore"):  # a rate beyond every number is an infinity
            return np.exp(outputs) if loss == "poisson" else outputs
    labels: NDArray[Any] = probabilities(outputs).argmax(-1)
    return labels if names is None else np.array(names)[labels]


def predict(folder: Path, table: Path) -> Predictions:
    """What the model of the run in a folder says about each row of a table, whose columns are found by their names.

    Guarantee: nothing is read but the folder, the table, and the module of one's own where the settings name one; the
    table needs neither labels nor clients. What is said about a row is what `Result.predict` says.

    Edge cases: no run, one that is not over, one that a program began or that did not learn from a table: `ConfigError`
    with the remedy; a column that is missing, or a cell that does not fit what the run's settings state: `DataError`.
    """
    config, columns = _stated_in(folder, instead="result.predict(features)")
    examples = _examples(config, columns, read_features(table, columns))
    module, loss = _module(config, examples, (folder / MODEL).read_bytes())
    outputs = outputs_of(module, examples)
    classes = columns.classes
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else classes
    ids = row_ids(table, columns)
    labels = labels_of(
        outputs,
        loss=loss,
        names=classes if isinstance(classes, tuple) else None,
        classes=columns.number_of_classes,
    )
    if names is None:
        return Predictions(ids=ids, labels=labels.reshape(len(examples)))
    return Predictions(ids=ids, labels=labels, classes=names, probabilities=probabilities(outputs.astype(np.float64)))


def as_onnx(folder: Path) -> bytes:
    """The same model as ONNX: it takes the numbers that the columns become, in the card's order.

    Edge cases: as `predict` and `onnx_of`.
    """
    config, columns = _stated_in(folder, instead="result.to_onnx(path)")
    examples = _examples(config, columns, np.zeros((1, len(columns.numbers())), np.float32))
    module, _ = _module(config, examples, (folder / MODEL).read_bytes())
    return onnx_of(module, examples.shape, np.dtype(np.float32))


def _stated_in(folder: Path, *, instead: str) -> tuple[Config | SiloConfig, Columns]:
    """The settings of a run that is over, and what the columns of its table mean; the features are named."""
    settings = settings_in(folder)
    config = read_back(settings["config"])
    wanted = _table_of(config, folder, instead)
    if not (folder / SUMMARY).is_file():
        remedy = f"it is not over: go on with `incrowd resume {folder}`"
        raise ConfigError(field="run", value=str(folder), remedy=remedy)
    return config, replace(wanted.meaning(), features=tuple(settings["columns"]))


def _examples(config: CommonSections, columns: Columns, features: NDArray[np.float32]) -> Examples:
    """Features as the model sees them; nobody knows their labels."""
    unknown = np.zeros(len(features))
    labels: Labels = unknown.astype(np.float32) if columns.classes is None else unknown.astype(np.int64)
    examples = Examples(features=features, labels=labels, classes=columns.number_of_classes)
    return featured_examples(config, examples, columns=columns)


def _module(config: Config | SiloConfig, examples: Examples, state: bytes) -> tuple[nn.Module, str]:
    """The released module, for such examples, and the name of its loss."""
    loss = loss_of(config.local.loss, examples)
    with section("model"):
        model = model_of(config, examples, loss).loaded(load(state))
    return model.with_weights(model.weights), loss.name


def _table_of(config: CommonSections, folder: Path, instead: str) -> Meaning:
    """The section of a table. Edge cases: other data say nothing about the columns of a table: `ConfigError`."""
    if isinstance(config.data, Meaning) and isinstance(config.model, GivenModel):
        remedy = f"a program began the run, and has the module: let it call {instead}"
    elif isinstance(config.data, Meaning) and config.data.label:
        return config.data
    elif isinstance(config.data, GivenData):
        remedy = f"a program began the run, and has the module: let it call {instead}"
    elif isinstance(config.data, FunctionData):
        remedy = f"its data come from a function, so no column is known by name: in Python, call {instead}"
    else:
        remedy = f"it learned from {config.data.name}, which is no table: in Python, call {instead}"
    raise ConfigError(field="run", value=str(folder), remedy=remedy)


def _finite(numbers: NDArray[Any]) -> list[Any]:
    if numbers.dtype.kind != "f":
        return list(numbers.tolist())
    return [one if np.isfinite(one) else None for one in numbers.tolist()]
