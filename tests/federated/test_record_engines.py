import numpy as np
import pytest
import torch

from incrowd._random import Floats
from incrowd.federated.record_engines import ENGINES, EngineName, record_engine
from incrowd.learning import CROSS_ENTROPY, SQUARED, Loss, Model, linear
from incrowd.learning.records import Records
from incrowd.settings.descent import Descent
from tests.federated.silos import MODEL, account, plan, records, silo

DESCENT = Descent(learning_rate=0.3, momentum=0.5, weight_decay=0.01)


def grey(count: int = 40) -> Records:
    """Records that are stored as bytes."""
    generator = np.random.default_rng(0)
    features = torch.from_numpy(generator.integers(0, 256, (count, 5)).astype(np.uint8))
    labels = torch.from_numpy(generator.integers(0, 3, count))
    return Records(features=features, labels=labels, scale=1 / 255, offset=-0.5)


def sent(name: EngineName, model: Model, held: Records, loss: Loss) -> Floats:
    """What a silo sends in its first round."""
    its = silo(plan(batch_size=10), account(), engine=record_engine(name, model, held, DESCENT, loss=loss))
    update = its.answer(0, np.zeros(model.size)).update
    assert update is not None
    return update


def check_alike(model: Model, held: Records, loss: Loss) -> None:
    own, opacus = (sent(name, model, held, loss) for name in ENGINES)
    np.testing.assert_allclose(own, opacus, atol=2e-5 * np.abs(own).max())


@pytest.mark.slow
@pytest.mark.parametrize("held", [records(), grey()], ids=["float32", "uint8"])
def test_the_engines_send_the_same(held: Records) -> None:
    check_alike(MODEL, held, CROSS_ENTROPY)


def test_the_loss_is_the_one_asked_for() -> None:
    held = Records(features=records().features, labels=records().labels.float())
    check_alike(linear(5, 1), held, SQUARED)
