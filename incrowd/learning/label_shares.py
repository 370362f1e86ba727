"""How often a client's own labels occur, as an offset of the outputs that its own training compares with them.

Clients whose labels are not everyone's teach each other's labels away: who holds two classes of ten tells the model
that there are no others. Under such a label shift the right likelihood of a client's labels adds the logarithm of each
class's share among them to the model's logits (logit adjustment: Menon et al. 2021, of clients Zhang et al. 2022). What
remains to be learned is how classes differ, and the model that is published has no offset at all: which classes are
frequent it does not know, unless everyone's shares are asked for (`incrowd.learning.class_shares`).
"""

import math

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


def shares_of(labels: Tensor, classes: int, *, several: bool) -> Tensor:
    """The share of each of so many classes among labels, float64; of `several` labels of yes and no each the share of
    yes.

    Edge cases: places of a sequence that do not count are left out; without labels all shares are 0.
    """
    if several:
        given = labels.to(torch.float64).reshape(len(labels), classes)
        return given.mean(0) if len(labels) else given.new_zeros(classes)
    counted = labels[labels != IGNORED]
    return torch.bincount(counted, minlength=classes).to(torch.float64) / max(1, len(counted))


def logit_offset(
    labels: Tensor, smoothing: float, *, loss: Loss, outputs: OutputShape, above_equal: Tensor | None = None
) -> Tensor:
    """What a client adds to the last dimension of its outputs: log(share of the class among its labels + smoothing).

    Of labels of yes and no it is the difference between the two logarithms. Where it is known by how much everyone's
    shares are `above_equal` ones, the same of everyone is taken off, less that of equal ones.

    Edge cases: see `shares_of`.
    """
    several = loss is LOGISTIC
    classes = math.prod(labels.shape[1:]) if several else outputs[-1]
    own = _offset(shares_of(labels, classes, several=several), smoothing, several=several)
    if above_equal is not None:
        equal = torch.full_like(own, 0.5 if several else 1 / classes)
        everyones = _offset(equal + above_equal.to(own), smoothing, several=several)
        own = own - (everyones - _offset(equal, smoothing, several=several))
    return own.float()


def _offset(shares: Tensor, smoothing: float, *, several: bool) -> Tensor:
    if several:
        return ((shares + smoothing) / (1 - shares + smoothing)).log()
    return (shares + smoothing).log()
