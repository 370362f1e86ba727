"""The task with pfl-research 0.3: sampling, accountant and central noise are there; nothing is written down."""

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism, PLDPrivacyAccountant
from torch.nn.functional import cross_entropy

from first_lines.task import COHORT, DELTA, EPSILON, OWNER, RATE, ROUNDS, X, Y, network

CLIP_NORM = 1.0


class Learner(torch.nn.Module):
    """What pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def loss(self, features: Any, labels: Any, **_: Any) -> torch.Tensor:
        """The mean loss of a batch."""
        return cross_entropy(self.network(torch.as_tensor(features)), torch.as_tensor(labels))

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing."""
        return {}


def main(_folder: str) -> None:
    """Train."""
    clients = np.unique(OWNER).tolist()
    accountant = PLDPrivacyAccountant(
        num_compositions=ROUNDS,
        sampling_probability=COHORT / len(clients),
        mechanism="gaussian",
        epsilon=EPSILON,
        delta=DELTA,
    )
    mechanism = GaussianMechanism(CLIP_NORM, accountant.cohort_noise_parameter)
    data = FederatedDataset(
        lambda client: Dataset([X[client == OWNER], Y[client == OWNER]]), get_user_sampler("random", clients)
    )
    backend = SimulatedBackend(data, None, postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)])
    module = Learner()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS, evaluation_frequency=ROUNDS, train_cohort_size=COHORT, val_cohort_size=None
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=10),
        model_eval_params=None,
        callbacks=[],
    )
