"""How often a client's own labels occur, as an offset of the outputs that its own training compares with them.

Clients whose labels are not everyone's teach each other's labels away: who holds two classes of ten tells the model
that there are no others. Under such a label shift the right likelihood of a client's labels adds the logarithm of each
class's share among them to the model's logits (logit adjustment: Menon et al. 2021, of clients Zhang et al. 2022). What
remains to be learned is how classes differ, and the model that is published has no offset at all.
"""

import torch
from torch import Tensor

from incrowd.data.examples import IGNORED
from incrowd.errors import ConfigError
from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, Loss, OutputShape


def check_label_shares(smoothing: float | None, loss: Loss) -> None:
    """Refuse them for a loss that knows no classes."""
    if smoothing is not None and loss not in (CROSS_ENTROPY, LOGISTIC):
        remedy = f"it is for {CROSS_ENTROPY.name!r} and {LOGISTIC.name!r}, this is {loss.name!r}: leave it out"
        raise ConfigError(field="local.label_shares", value=smoothing, remedy=remedy)


def logit_offset(labels: Tensor, smoothing: float, *, loss: Loss, outputs: OutputShape) -> Tensor:
    """What a client adds to the last dimension of its outputs: log(share of the class among its labels + smoothing).

    Of labels of yes and no it is the difference between the two logarithms.

    Edge cases: places of a sequence that do not count are left out; without labels all shares are 0.
    """
    if loss is LOGISTIC:
        yes = labels.to(torch.float64).view(len(labels), -1).mean(0) if len(labels) else torch.zeros(outputs[-1:])
        return ((yes + smoothing) / (1 - yes + smoothing)).log().float()
    counted = labels[labels != IGNORED]
    counts = torch.bincount(counted, minlength=outputs[-1]).to(torch.float64)
    return (counts / max(1, len(counted)) + smoothing).log().float()
