"""Pictures of a thing on a blank ground, moved so that it is in the middle."""

from typing import NamedTuple

import torch
from torch import Tensor

_VISIBLE = 0.2  # of the largest difference from the ground
_ROOM = 0.2  # of a side; what has less is moved by its box, what has more on both, by its mass
_BLANK = 0.9  # of the edge is ground, or there is none
_HALF = 0.5 + 2**-10  # far more than rounding, so that halves are rounded up whatever rounding has made of them


def centred(pictures: Tensor) -> Tensor:
    """Pictures [n, c, h, w], each moved by whole pixels, so that what is on its ground is in the middle.

    What has much room, above and below and on both sides, is moved by its centre of mass; other things until there is
    as much room above as below and on the left as on the right, or one pixel more. What comes in at the edge is like
    the edge.

    The ground is the median of the edge, in each channel. Where a tenth of the edge or more is something else, as in
    a landscape, the picture stays as it is.
    """
    rows, columns = (_from(moved) for moved in _moves(pictures))
    numbers = torch.arange(len(pictures))[:, None, None]
    return pictures.transpose(0, 1)[:, numbers, rows[:, :, None], columns[:, None, :]].transpose(0, 1).contiguous()


def how_far(pictures: Tensor) -> Tensor:
    """How far `centred` moves each of these pictures, as a share of the side along which it is more [n]."""
    rows, columns = _moves(pictures)
    return torch.maximum(rows.offset.abs() / rows.side, columns.offset.abs() / columns.side)


class _Move(NamedTuple):
    """Along an axis of so many pixels, by how many each picture is moved."""

    side: int
    offset: Tensor


def _moves(pictures: Tensor) -> tuple[_Move, _Move]:
    edges = torch.cat([pictures[:, :, 0], pictures[:, :, -1], pictures[..., 0], pictures[..., -1]], dim=2)
    ground = edges.median(dim=2, keepdim=True).values
    apart = (pictures - ground[..., None]).abs().amax(dim=1)
    visible = _VISIBLE * apart.amax(dim=(1, 2), keepdim=True)
    blank = ((edges - ground).abs().amax(dim=1) <= visible[:, 0]).float().mean(dim=1) > _BLANK
    there = (apart > visible) & blank[:, None, None]
    weights = apart * there
    by_row, by_column = (_offsets(weights.sum(dim=axis)) for axis in (2, 1))
    small = by_row.room & by_column.room
    rows, columns = (_Move(axis.side, torch.where(small, axis.mass, axis.box).long()) for axis in (by_row, by_column))
    return rows, columns


class _Placement(NamedTuple):
    """How far boxes and centres of mass are from the middle of an axis, and whether there is much room around."""

    side: int
    box: Tensor
    mass: Tensor
    room: Tensor


def _offsets(weights: Tensor) -> _Placement:
    """Of weights [n, side]."""
    side = weights.shape[1]
    there = weights > 0
    before, after = (one.int().argmax(dim=1) for one in (there, there.flip(1)))
    places = torch.arange(side) - (side - 1) / 2
    # Halves are rounded up, so that what was moved by whole pixels comes to the same place, and alone as beside others.
    mass = (weights @ places / weights.sum(dim=1).clamp_min(1e-9) + _HALF).floor()
    return _Placement(side, ((before - after) / 2).trunc(), mass, before + after >= _ROOM * side)


def _from(axis: _Move) -> Tensor:
    """For each place the one whose content moves there [n, side]."""
    return (torch.arange(axis.side) + axis.offset[:, None]).clamp(0, axis.side - 1)
