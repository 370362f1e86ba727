"""What every run leaves behind: the released model, how good it is, and a picture."""

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from incrowd import _files
from incrowd._random import Floats
from incrowd.algorithms import evaluate, score
from incrowd.data import Clients, Examples
from incrowd.learning import Loss, Model
from incrowd.runs.figures import RunCurve, plot_runs
from incrowd.runs.folder import CURVE, MODEL, START, SUMMARY


def measured(model: Model, weights: Floats, test: Examples | None, *, loss: Loss) -> dict[str, float | None]:
    """How good weights are on the test set that the server holds.

    A loss that is not finite, of weights that went astray, is None: JSON has no word for it.
    """
    if test is None:
        return {"accuracy": None, "loss": None}
    on_test = score(model, weights, test, loss=loss)
    return {
        "accuracy": on_test.accuracy,
        "loss": on_test.loss if math.isfinite(on_test.loss) else None,
    }


def metrics(model: Model, weights: Floats, data: Clients, *, loss: Loss) -> dict[str, Any] | None:
    """What people report of weights, measured on the test set that the server holds."""
    if data.test is None:
        return None
    return evaluate(model, weights, data.test, loss=loss)


def rehearse(model: Model, weights: Floats, test: Examples | None, *, loss: Loss) -> None:
    """Measure one test example, so that what cannot be measured fails before a round is paid for."""
    if test is not None:
        one = test.some(slice(1))
        measured(model, weights, one, loss=loss)
        evaluate(model, weights, one, loss=loss)


def write_model(folder: Path, model: Model, weights: Floats) -> None:
    """The released model, under torch's names and in its shapes."""
    _files.write(folder / MODEL, save(model.state_dict(weights)))


def write_first_state(folder: Path, model: Model) -> None:
    """The state that a module of one's own begins with: whoever makes it anew may draw other weights."""
    if not model.fresh:
        _files.write(folder / START, save(model.state_dict(model.weights)))


def first_state_in(folder: Path) -> dict[str, Tensor] | None:
    """What `write_first_state` wrote, if it wrote anything."""
    path = folder / START
    return load(path.read_bytes()) if path.exists() else None


def of_stopped(folder: Path) -> dict[str, Any] | None:
    """The result of a run that was over before its last planned round; of others None."""
    path = folder / SUMMARY
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found if found.get("stopped_early") is not None else None


def drawn(folder: Path, curve: RunCurve, *, wanted: bool) -> str | None:
    """Where the picture of the rounds is, if one is wanted and can be drawn."""
    if not wanted or find_spec("matplotlib") is None:
        return None
    path = folder / CURVE
    plot_runs(path, [curve])
    return str(path)
