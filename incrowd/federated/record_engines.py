"""The engines for record-level training by name, made for one model and one silo's records."""

import copy
from collections.abc import Callable
from typing import Literal

import torch
from torch.utils.data import DataLoader, TensorDataset

from incrowd.data.inputs import is_single
from incrowd.errors import ConfigError
from incrowd.learning import CROSS_ENTROPY, Loss, Model
from incrowd.learning.dropout import refuse_dropout
from incrowd.learning.execution import Execution
from incrowd.learning.inputs import meant
from incrowd.learning.record_engine import EXECUTION, BatchedRecords
from incrowd.learning.records import RecordEngine, Records
from incrowd.settings.descent import Descent

EngineName = Literal["own", "opacus"]

Make = Callable[[Model, Records, Descent, Loss, Execution], RecordEngine]


def record_engine(
    name: EngineName,
    model: Model,
    records: Records,
    descent: Descent,
    *,
    loss: Loss = CROSS_ENTROPY,
    execution: Execution = EXECUTION,
) -> RecordEngine:
    """The engine of this name: `own` is the fast one, `opacus` computes gradients as Opacus does."""
    return _ENGINES[name](model, records, descent, loss, execution)


def _own(model: Model, records: Records, descent: Descent, loss: Loss, execution: Execution) -> RecordEngine:
    return BatchedRecords(model, records, descent, loss=loss, execution=execution)


def _opacus(model: Model, records: Records, descent: Descent, loss: Loss, execution: Execution) -> RecordEngine:
    from incrowd.learning.opacus_engine import OpacusRecords

    if not (is_single(records.features) and all(one.requires_grad for one in model.module.parameters())):
        remedy = "Opacus is given one input and modules of which all is trained here; the engine own takes others, too"
        raise ConfigError(field="engine", value="opacus", remedy=remedy)
    if not all(part.training for part in model.module.modules()):
        remedy = "Opacus trains in training mode, and parts of the module are in evaluation mode; take the engine own"
        raise ConfigError(field="engine", value="opacus", remedy=remedy)
    refuse_dropout(model.module, whose="record")
    module = copy.deepcopy(model.module).to(execution.device)
    features = meant(records.features, scale=records.scale, offset=records.offset)
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=descent.learning_rate,
        momentum=descent.momentum,
        weight_decay=descent.weight_decay,
    )
    nobody = records.made_up(1)
    return OpacusRecords(
        module,
        optimizer,
        DataLoader(TensorDataset(features, records.labels)),
        criterion=loss.value,
        made_up=(meant(nobody.features, scale=1, offset=records.offset)[0], nobody.labels[0]),
    )


_ENGINES: dict[EngineName, Make] = {"own": _own, "opacus": _opacus}
ENGINES: tuple[EngineName, ...] = tuple(_ENGINES)
