"""What is doubtful about public test examples, and about the first steps of training on them.

A few steps are tried: what a client would do, on examples that nobody has to be protected from being seen.
"""

import math
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import torch

from incrowd._random import SeededRandomness
from incrowd.data import Examples
from incrowd.data.inputs import each
from incrowd.learning.arithmetic import one_thread
from incrowd.learning.inputs import calling
from incrowd.runs.build import init_scale_of
from incrowd.runs.client_work import LedgerWork
from incrowd.runs.silo_config import SiloConfig
from incrowd.runs.silo_work import SiloWork

LARGE = 100.0
"""Features beyond this are called unscaled."""

LOPSIDED = 0.8
"""A class with at least this share of the examples makes accuracy tell little."""

STEPS = 5
"""So many steps are tried on public examples."""

DIVERGED = 10.0
"""So many times the smallest loss is called astray."""

_LOOKED_AT, _TRIED, _LARGEST, _TINY = 1000, 64, 2_000_000, 1e-6


def of_examples(work: LedgerWork | SiloWork, test: Examples) -> Iterator[str]:
    """What is doubtful, of test examples that are public."""
    yield from _of_scale(work, test)
    yield from _of_balance(test)
    yield from _of_first_steps(work, test)


def _of_scale(work: LedgerWork | SiloWork, test: Examples) -> Iterator[str]:
    """Numbers so large that they rule the gradient; those of a table are known by their columns."""
    values = test.values(slice(0, _LOOKED_AT))
    if work.data.table is not None or not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return
    largest = float(np.abs(values).max(initial=0.0))
    if largest > LARGE:
        yield (
            f"features of the test examples go up to {largest:.4g}: the largest numbers rule the gradient. Scale them "
            "by a range that is public, say to 0 .. 1."
        )


def _of_balance(test: Examples) -> Iterator[str]:
    """A class that is so frequent that to say it always looks good."""
    if test.classes is None or test.labels.ndim > 1 or not len(test):
        return
    trivial = np.bincount(test.labels).max() / len(test)
    if trivial >= LOPSIDED:
        yield (
            f"always saying the most frequent class is right for {100 * trivial:.3g} % of the test examples: accuracy "
            "tells little here. Look at balanced_accuracy, macro_f1 and auc."
        )


def _of_first_steps(work: LedgerWork | SiloWork, test: Examples) -> Iterator[str]:
    """Local training that goes astray on public examples already."""
    found = first_steps(work, test.some(slice(0, _TRIED)))
    if found is None:
        return
    before, after = found
    if not math.isfinite(after) or after > DIVERGED * max(before, _TINY):
        reached = f"{after:.3g}" if math.isfinite(after) else "no finite number"
        yield (
            f"local.learning_rate = {work.config.local.learning_rate:g} goes astray: on test examples {STEPS} steps "
            f"take the loss from {before:.3g} to {reached}. Lower it."
        )


def first_steps(work: LedgerWork | SiloWork, examples: Examples) -> tuple[float, float] | None:
    """The loss of some public examples before and after `STEPS` steps of gradient descent on them, as a client, or a
    silo without its noise, would take them.

    Edge cases: large models are not tried, for it takes too long; what fails here is left to the rehearsal.
    """
    if work.model.size > _LARGEST:
        return None
    clip = work.config.privacy.clip_norm if isinstance(work.config, SiloConfig) else math.inf
    by_server = isinstance(work.config, SiloConfig) and work.config.privacy.noise_by == "server"
    rate = (work.config.server if by_server else work.config.local).learning_rate
    with one_thread(), suppress(Exception):  # a module of somebody's own may raise anything
        module = work.model.with_weights(
            work.model.initial(SeededRandomness(seed=0), init_scale=init_scale_of(work.config))
        )
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        call = calling(module, examples.features)
        inputs, labels = each(torch.from_numpy, examples.values(slice(None))), torch.from_numpy(examples.labels)
        losses = []
        for _ in range(STEPS + 1):
            loss = work.loss.value(call(inputs), labels)
            losses.append(float(loss.detach()))
            slopes = torch.autograd.grad(loss, weights)
            norm = math.sqrt(sum(float(slope.double().square().sum()) for slope in slopes))
            with torch.no_grad():
                for weight, slope in zip(weights, slopes, strict=True):
                    weight.sub_(rate * min(1.0, clip / max(norm, _TINY)) * slope)
        return losses[0], losses[-1]
    return None
