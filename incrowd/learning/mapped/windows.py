"""A convolution as the product of copied windows with the kernel.

Side by side, every client has a kernel of its own. What libraries have for that, a convolution in groups, was made for
kernels that are alike, and takes several times what a product of matrices for each client takes.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

Window = tuple[int, int, int, int]
"""Height and width of a window, steps between windows."""


def convolve_windows(module: nn.Module) -> None:
    """Have every nn.Conv2d of a module, which is a copy of our own, computed by windows when it is called.

    Edge cases: those in groups, dilated, or padded with something else than zeros are left to torch.
    """
    for part in module.modules():
        plain = type(part) is nn.Conv2d and part.groups == 1 and tuple(part.dilation) == (1, 1)
        if plain and part.padding_mode == "zeros" and not isinstance(part.padding, str):
            part.__class__ = WindowConv2d  # it keeps its parameters and what it was told


class WindowConv2d(nn.Module):
    """What nn.Conv2d computes, to rounding; its numbers lie with the channels of a place together."""

    weight: Tensor
    bias: Tensor | None
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]

    def forward(self, pictures: Tensor) -> Tensor:
        """Pictures [N, C, H, W]. Edge cases: one without N is a ValueError."""
        if pictures.ndim != 4:
            raise ValueError("only pictures in batches are taken in windows")
        down, across = self.padding
        padded = functional.pad(pictures.permute(0, 2, 3, 1), (0, 0, across, across, down, down))
        windows = _CutOut.apply(padded, (*self.kernel_size, *self.stride))  # type: ignore[no-untyped-call]  # torch has no types for it
        count, height, width, _ = windows.shape
        kernel = self.weight.permute(2, 3, 1, 0).flatten(0, 2)
        outputs: Tensor = windows.flatten(0, 2) @ kernel
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.view(count, height, width, -1).permute(0, 3, 1, 2)


def windows_of(pictures: Tensor, shape: Window) -> Tensor:
    """Copies of all windows of pictures [N, H, W, C]: [N, h, w, numbers of a window]."""
    count, height, width, channels = pictures.shape
    tall, wide, down, across = shape
    places = (height - tall) // down + 1, (width - wide) // across + 1
    n, y, x, c = pictures.contiguous().stride()
    view = pictures.contiguous().as_strided((count, *places, tall, wide, channels), (n, y * down, x * across, y, x, c))
    return view.reshape(count, *places, -1)


def pictures_of(windows: Tensor, shape: Window, size: tuple[int, int, int]) -> Tensor:
    """The transpose of `windows_of`: at every place of pictures of this size [H, W, C] the sum over all windows that it
    is in, in one order.
    """
    tall, wide, down, across = shape
    count, high, broad, _ = windows.shape
    pieces = windows.view(count, high, broad, tall, wide, size[2])
    found = windows.new_zeros(count, *size)
    for i in range(tall):
        for j in range(wide):
            rows = slice(i, i + (high - 1) * down + 1, down)
            columns = slice(j, j + (broad - 1) * across + 1, across)
            found[:, rows, columns] += pieces[:, :, :, i, j]
    return found


class _CutOut(torch.autograd.Function):
    """`windows_of`, with its derivative. It treats every picture alone, so clients' pictures are one list to it."""

    @staticmethod
    def forward(pictures: Tensor, shape: Window) -> Tensor:
        return windows_of(pictures, shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004  # torch calls it so
        ctx.shape, ctx.size = inputs[1], tuple(inputs[0].shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        found: Tensor = _PutTogether.apply(gradients[0], ctx.shape, ctx.size)  # type: ignore[no-untyped-call]  # torch has no types for it
        return found, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], pictures: Tensor, shape: Window) -> tuple[Tensor, int]:
        listed = _listed(pictures, in_dims[0])
        found = cast("Tensor", _CutOut.apply(listed, shape))  # type: ignore[no-untyped-call]  # torch has no types for it
        return found.view(info.batch_size, -1, *found.shape[1:]), 0


class _PutTogether(torch.autograd.Function):
    """`pictures_of`, with its derivative."""

    @staticmethod
    def forward(windows: Tensor, shape: Window, size: tuple[int, int, int]) -> Tensor:
        return pictures_of(windows.contiguous(), shape, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004  # as above
        ctx.shape = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        found: Tensor = _CutOut.apply(gradients[0], ctx.shape)  # type: ignore[no-untyped-call]  # torch has no types for it
        return found, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], windows: Tensor, shape: Window, size: tuple[int, int, int]
    ) -> tuple[Tensor, int]:
        listed = _listed(windows, in_dims[0])
        found = cast("Tensor", _PutTogether.apply(listed, shape, size))  # type: ignore[no-untyped-call]  # torch has no types for it
        return found.view(info.batch_size, -1, *found.shape[1:]), 0


def _listed(several: Tensor, dimension: int | None) -> Tensor:
    """What clients have, one after the other in one list. The dimension is there: only what has one is mapped."""
    return several.movedim(dimension or 0, 0).flatten(0, 1)
