"""Apple's pfl-research: its simulated backend with federated averaging, clipping and central Gaussian noise."""

import os
import time
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from contest.lean import flat, parts, settle, trainable
from contest.works import CLIP_NORM, LEARNING_RATE, NOISE_MULTIPLIER, Task
from harness.arrays import Floats


class Pfl:
    """One simulation, taken a round at a time. Its batches are drawn before the clock starts.

    Edge cases: pfl evaluates every client in its very first iteration, which has to be that of `update`.
    """

    name, threads = "pfl", 1

    def __init__(self, task: Task) -> None:
        os.environ["PFL_PYTORCH_DEVICE"] = task.device  # else it takes an accelerator where there is one
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.model.pytorch import PyTorchModel
        from pfl.privacy import GaussianMechanism, NormClippingOnly

        self.task = task
        self.module = _module(task).to(task.device)
        self.parameters = list(trainable(self.module).values())
        self._rows: list[Tensor] = []
        self._algorithm = FederatedAveraging()
        self._model = PyTorchModel(
            model=self.module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self.parameters, lr=1.0),
        )
        self._silent = self._backend(NormClippingOnly(2, CLIP_NORM))
        self._noisy = self._backend(GaussianMechanism(CLIP_NORM, NOISE_MULTIPLIER))
        self._to(task.start)

    def update(self) -> Floats:
        """The sum of the clipped contributions to the first weights in round 0, without noise."""
        self._to(self.task.start)
        before = flat(self.parameters)
        self._iterate(self._silent, 0)
        total: Floats = (flat(self.parameters) - before) * self.task.work.cohort
        self._to(self.task.start)
        return total

    def round(self, number: int) -> float:
        """Take the weights through a round; its seconds."""
        return self._iterate(self._noisy, number)

    def close(self) -> None:
        """There is nothing to close."""

    def _to(self, weights: Tensor) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, parts(weights, self.parameters))

    def _backend(self, mechanism: Any) -> Any:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByUser
        from pfl.data import FederatedDataset
        from pfl.data.dataset import Dataset
        from pfl.data.sampling import get_user_sampler
        from pfl.privacy import CentrallyAppliedPrivacyMechanism

        features, labels = self.task.tensors

        def dataset(client: int) -> Any:
            rows = self._rows[client]
            return Dataset(raw_data=[features[rows], labels[rows]])

        users = FederatedDataset(dataset, get_user_sampler("minimize_reuse", range(self.task.work.cohort)))
        postprocessors = [WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)]
        return SimulatedBackend(training_data=users, val_data=users, postprocessors=postprocessors)

    def _iterate(self, backend: Any, number: int) -> float:
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams

        never = 10**9
        cohort = self.task.work.cohort
        self._rows = [self.task.rows(client, round=number) for client in range(cohort)]
        params = NNAlgorithmParams(
            central_num_iterations=never, evaluation_frequency=never, train_cohort_size=cohort, val_cohort_size=0
        )
        train = NNTrainHyperParams(
            local_learning_rate=LEARNING_RATE, local_num_epochs=1, local_batch_size=self.task.batch_size
        )
        stop = _stop_after_each()
        begin = time.perf_counter()
        self._algorithm.run(
            algorithm_params=params,
            backend=backend,
            model=self._model,
            model_train_params=train,
            model_eval_params=NNEvalHyperParams(local_batch_size=None),
            callbacks=[stop],
            send_metrics_to_platform=False,
        )
        settle(self.task.device)
        return time.perf_counter() - begin


def _stop_after_each() -> Any:
    from pfl.callback.base import TrainingProcessCallback
    from pfl.metrics import Metrics

    class StopAfterEach(TrainingProcessCallback):  # type: ignore[misc]  # pfl ships no types
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            return True, Metrics()

    return StopAfterEach()


def _module(task: Task) -> nn.Module:
    """The module with the two methods that pfl asks of it."""
    from pfl.metrics import Weighted

    def loss(self: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {"loss": Weighted(nn.functional.cross_entropy(self(x), y).item(), len(x))}

    module = task.work.module()
    module.loss = MethodType(loss, module)  # type: ignore[assignment]  # pfl looks for them on the module
    module.metrics = MethodType(metrics, module)  # type: ignore[assignment]  # the same
    return module
