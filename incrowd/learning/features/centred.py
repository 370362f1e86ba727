"""Pictures of a thing on a blank ground, moved so that it is in the middle."""

import torch
from torch import Tensor

_VISIBLE = 0.2  # of the largest difference from the ground
_BLANK = 0.9  # of the edge is ground, or there is none


def centred(pictures: Tensor) -> Tensor:
    """Pictures [n, c, h, w], each moved by whole pixels until what is not ground has as much room above as below, and
    on the left as on the right, or one pixel more. What comes in at the edge is like the edge.

    The ground is the median of the edge, in each channel. Where a tenth of the edge or more is something else, as in
    a landscape, the picture stays as it is.
    """
    edges = torch.cat([pictures[:, :, 0], pictures[:, :, -1], pictures[..., 0], pictures[..., -1]], dim=2)
    ground = edges.median(dim=2, keepdim=True).values
    apart = (pictures - ground[..., None]).abs().amax(dim=1)
    visible = _VISIBLE * apart.amax(dim=(1, 2), keepdim=True)
    blank = ((edges - ground).abs().amax(dim=1) <= visible[:, 0]).float().mean(dim=1) > _BLANK
    there = (apart > visible) & blank[:, None, None]
    rows, columns = (_moved(there.any(dim=axis)) for axis in (2, 1))
    numbers = torch.arange(len(pictures))[:, None, None]
    return pictures.transpose(0, 1)[:, numbers, rows[:, :, None], columns[:, None, :]].transpose(0, 1).contiguous()


def _moved(there: Tensor) -> Tensor:
    """For each place the one whose content moves there [n, side], where `there` says what is not ground."""
    side = there.shape[1]
    before, after = (one.int().argmax(dim=1) for one in (there, there.flip(1)))
    offset = ((before - after) / 2).trunc().long()
    return (torch.arange(side) + offset[:, None]).clamp(0, side - 1)
