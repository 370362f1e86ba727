"""The task with Opacus, which protects records: clients are gone round by hand, and one optimizer adds the noise.

A client's whole contribution is what a record is to Opacus, so its own engine cannot sample, clip and account for it:
this takes its accountant for the noise and its optimizer's formula by hand. Nothing is written down.
"""

import copy

import numpy as np
import torch
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from first_lines.task import COHORT, DELTA, EPSILON, OWNER, RATE, ROUNDS, TEST, X, Y, network

CLIP_NORM = 1.0


def main(_folder: str) -> float:
    """Train, and say how good it is."""
    clients = np.unique(OWNER)
    rate = COHORT / len(clients)
    noise = get_noise_multiplier(
        target_epsilon=EPSILON, target_delta=DELTA, sample_rate=rate, steps=ROUNDS, accountant="rdp"
    )
    accountant = RDPAccountant()
    server = network()
    for _ in range(ROUNDS):
        start = parameters_to_vector(server.parameters()).detach()
        total = torch.zeros_like(start)
        for client in clients[np.random.default_rng().random(len(clients)) < rate]:
            model = copy.deepcopy(server)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            its = TensorDataset(torch.from_numpy(X[client == OWNER]), torch.from_numpy(Y[client == OWNER]))
            for features, labels in DataLoader(its, batch_size=10, shuffle=True):
                optimizer.zero_grad()
                cross_entropy(model(features), labels).backward()
                optimizer.step()
            change = parameters_to_vector(model.parameters()).detach() - start
            total += change * (CLIP_NORM / max(float(change.norm()), CLIP_NORM))
        total += torch.normal(0.0, noise * CLIP_NORM, total.shape)
        vector_to_parameters(start + total / COHORT, server.parameters())
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    print(accountant.get_epsilon(DELTA))
    features, labels = TEST
    return float((server(torch.from_numpy(features)).argmax(1).numpy() == labels).mean())
