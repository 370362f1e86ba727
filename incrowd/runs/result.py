"""What a run came to, as a program uses it."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import nn

from incrowd import _files
from incrowd._html import html_table
from incrowd.algorithms.metrics import outputs_of, probabilities
from incrowd.data import Clients, Columns, from_arrays, read_features
from incrowd.data.inputs import first
from incrowd.errors import ConfigError
from incrowd.learning import Loss, Model
from incrowd.runs.build import featured_examples
from incrowd.runs.config import CommonSections
from incrowd.runs.contents import RESULT_KEYS, part
from incrowd.runs.database import Record
from incrowd.runs.figures import RunCurve, plot_runs
from incrowd.runs.folder import CARD, MODEL, Summary, database_in, summary_in
from incrowd.runs.onnx_file import onnx_of
from incrowd.runs.prediction import labels_of
from incrowd.runs.run import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """A finished run: the released model, how good it is, and what is promised; `card` is a page for whoever is handed
    the model.

    Edge cases: a run that is not over has no result: `ConfigError`.
    """

    folder: Path
    summary: Summary = field(repr=False)
    model: Model = field(repr=False)
    loss: Loss = field(repr=False)
    settings: CommonSections = field(repr=False)
    card: str = field(repr=False)
    scaling: tuple[float, float] = (1.0, 0.0)
    number_of_classes: int | None = None
    table: Columns | None = field(default=None, repr=False)
    example: tuple[tuple[int, ...], np.dtype[Any]] | None = field(default=None, repr=False)
    label_names: tuple[str, ...] = field(default=(), repr=False)

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
            card=(run.folder / CARD).read_text(encoding="utf-8"),
            scaling=_scaling(data),
            number_of_classes=data.examples.classes,
            table=data.table,
            example=_example(data),
            label_names=data.label_names,
        )

    @property
    def module(self) -> nn.Module:
        """The trained module, a copy, in evaluation mode."""
        return self.model.with_weights(self.model.weights)

    @property
    def statement(self) -> str:
        """What is promised, to whom, and what is not."""
        return str(self.summary["statement"]["text"])

    @property
    def epsilon(self) -> float:
        """What was spent."""
        return float(self.summary["epsilon"])

    @property
    def accuracy(self) -> float | None:
        """The share of right labels on the test examples, if there are any and they have classes."""
        accuracy = self.summary["accuracy"]
        return None if accuracy is None else float(accuracy)

    @cached_property
    def rounds(self) -> Sequence[Record]:
        """The rounds, one after the other."""
        with database_in(self.folder) as database:
            return database.rounds()

    def predict(self, features: Any) -> NDArray[Any]:
        """The label of each example: a class, by its name where classes have names, or a number."""
        names = self.label_names if self.table is None else self.table.classes
        return labels_of(
            self.outputs(features),
            loss=self.loss.name,
            names=names if isinstance(names, tuple) and names else None,
            classes=self.number_of_classes,
        )

    def predict_proba(self, features: Any) -> NDArray[Any]:
        """The probability of each class, [examples, classes]. Edge cases: labels are numbers: `ConfigError`."""
        if self.number_of_classes is None:
            raise ConfigError(field="predict_proba", value=None, remedy="the labels are numbers: use predict")
        return probabilities(self.outputs(features).astype(np.float64))

    def outputs(self, features: Any) -> NDArray[Any]:
        """What the module gives for each example: those of an array, or, if it learned from a table, of another one, a
        file or a data frame, that has the same columns.
        """
        if self.table is not None and (isinstance(features, str | Path) or hasattr(features, "itertuples")):
            features = read_features(features, self.table)
        scale, offset = self.scaling
        count = len(first(features))
        examples = from_arrays(features, np.zeros(count), scale=scale, offset=offset)
        return outputs_of(self.module, featured_examples(self.settings, examples, columns=self.table))

    def plot(self, path: Path | str, *others: "Result") -> Path:
        """Draw how good the model was and what it cost, round by round, into a .png, .svg or .pdf; with `others`,
        those that differ by their seeds alone are one curve (`incrowd.runs.figures`).
        """
        plot_runs(Path(path), [RunCurve.read(each.folder) for each in (self, *others)])
        return Path(path)

    def to_onnx(self, path: Path | str) -> Path:
        """Write the module as ONNX (`incrowd.runs.onnx_file`); what it takes are examples as the module sees them."""
        if self.example is None:
            remedy = "it takes several inputs, which is not written as ONNX; model.safetensors has its weights"
            raise ConfigError(field="module", value=type(self.module).__name__, remedy=remedy)
        _files.write(Path(path), onnx_of(self.module, *self.example))
        return Path(path)

    def _repr_html_(self) -> str:
        handed_on = part(self.summary, RESULT_KEYS)
        shown = {name: value for name, value in handed_on.items() if isinstance(value, int | float | str)}
        table = html_table({name.replace("_", " "): value for name, value in shown.items()})
        return f"{table}<pre>{html.escape(self.statement)}</pre>"


def _example(data: Clients) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and type of an example as the module sees it; None where it is several arrays."""
    values = data.examples.values(slice(1))
    return (values.shape[1:], values.dtype) if isinstance(values, np.ndarray) else None


def _scaling(data: Clients) -> tuple[float, float]:
    return data.examples.scale, data.examples.offset
