"""What every run leaves behind: the released model, how good it is, and a picture."""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from incrowd import _files
from incrowd._random import Floats
from incrowd.data import Clients, Examples
from incrowd.federated import evaluate, score
from incrowd.learning import Loss, Model
from incrowd.runs.checkpoints import to_bytes
from incrowd.runs.database import Record
from incrowd.runs.folder import CURVE, MODEL


def measured(model: Model, weights: Floats, test: Examples | None, *, loss: Loss) -> dict[str, float | None]:
    """How good weights are on the test set that the server holds.

    A loss that is not finite, of weights that went astray, is None: JSON has no word for it.
    """
    if test is None:
        return {"accuracy": None, "loss": None}
    found = score(model, weights, test, loss=loss)
    return {"accuracy": found.accuracy, "loss": found.loss if math.isfinite(found.loss) else None}


def metrics(model: Model, weights: Floats, data: Clients, *, loss: Loss) -> dict[str, Any] | None:
    """What people report of weights, measured on the test set that the server holds.

    Edge cases: of test examples that are not public, nothing is said class by class, because that counts them.
    """
    if data.test is None:
        return None
    return evaluate(model, weights, data.test, loss=loss, counted=data.test_clients == "separate")


def rehearse(model: Model, weights: Floats, test: Examples | None, *, loss: Loss) -> None:
    """Measure one test example, so that what cannot be measured fails before a round is paid for."""
    if test is not None:
        one = replace(test, features=test.features[:1], labels=test.labels[:1])
        measured(model, weights, one, loss=loss)
        evaluate(model, weights, one, loss=loss)


def write_model(folder: Path, model: Model, weights: Floats) -> None:
    """The released model, under torch's names and in its shapes."""
    arrays = model.layout.unflatten(weights)
    content = {name: array.astype(np.float32) for name, array in arrays.items()}
    _files.write(folder / MODEL, to_bytes(content))


def drawn(folder: Path, records: Sequence[Record], *, wanted: bool, simulated: bool) -> str | None:
    """Where the picture of the rounds is, if one is wanted and can be drawn."""
    if not wanted or find_spec("matplotlib") is None:
        return None
    from incrowd.runs.plots import draw_curve

    path = folder / CURVE
    draw_curve(path, records, simulated=simulated)
    return str(path)
