"""The slow, obvious twin of a private federation: algorithm 1 of Geyer, Klein and Nabi 2017, line by line."""

import numpy as np
import torch

from incrowd import Local
from incrowd._random import Floats, Randomness
from incrowd.learning import ClientTensors, Model
from tests.reference.one_client import contribution


def exact_rounds(
    model: Model,
    data: ClientTensors,
    local: Local,
    *,
    cohorts: list[list[int]],
    clip_norm: float,
    noises: list[Floats],
    denominator: float,
    randomness: Randomness,
) -> Floats:
    """The weights after these rounds, given each round's cohort and noise."""
    weights = model.initial(randomness).numpy().astype(np.float64)
    for number, (cohort, noise) in enumerate(zip(cohorts, noises, strict=True)):
        total = np.zeros_like(weights)
        for client in cohort:
            start = torch.from_numpy(weights.astype(np.float32))
            update = contribution(model, start, data, local, randomness=randomness, round=number, client=client)
            vector = update.numpy().astype(np.float64)
            total += vector / max(1.0, float(np.linalg.norm(vector)) / clip_norm)
        weights = weights + (total + noise) / denominator
    return weights
