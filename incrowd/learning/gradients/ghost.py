"""Clipped sums of gradients without the gradients: stacks of Linear layers, many records at once.

A record's gradient of a Linear layer is the outer product of d, the gradient of the layer's outputs, and a, its inputs
(and 1, for the bias). Its norm is ``|d|`` times the root of ``|a|^2 + 1``, so norms need no gradients (Goodfellow
2015), and the clipped sum of all records is one matrix product in which every d is scaled by its record's factor: there
is no second backward pass. Norms are computed in float64 from these d and a; so are sums, but for those of few records,
where float32 is twice as fast and its rounding is paid for
(`incrowd.privacy.mechanism.steps.RecordTraining.sensitivity`).

The rows of a product are computed beside those of other records, but not from them: only where a row lies, and how many
there are, might make a processor add up in another order. So all rows begin at a line of the cache, their number is a
multiple of sixteen, and `rows_are_alike` tries out whether the same row then has the same bits in every place.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.learning.program import Dense, Program
from incrowd.privacy.mechanism.steps import FLOAT32_RECORDS

_LEAST = 2.0**-126
_LINE = 16  # float32 numbers in a line of the cache
_SIXTEEN = 16  # rows: of fewer, some processors were seen to add up in another order
_RUN = 2**15 - 1  # numbers: of so few torch computes functions in one run; of more, threads begin within a row
_PROBES, _NUMBERS = 2, 32  # trials, and numbers of each: where there are few, rounding often does not show


class Ghost:
    """The clipped sum of the gradients of up to `rows` records at a time, at the weights of each parameter.

    Guarantee: as `incrowd.learning.gradients.sums.RecordGradients`.

    Edge cases: where it is `blockwise`, always as many records come, whatever of them counts, and sums are in float64:
    what is then done to memory does not depend on the records, and can be repeated without being told.
    """

    def __init__(self, program: Program, weights: Sequence[Tensor], *, rows: int, blockwise: bool = False) -> None:
        left = iter(weights)
        self.blockwise = blockwise
        self.layers = [_GhostLayer(dense, left, rows) for dense in program.layers]
        self.loss = program.loss
        self.rows = rows
        self._inputs = in_lines(rows, program.layers[0].inputs, weights[0].device)
        size, device = sum(part.numel() for part in weights), weights[0].device
        self._sums = {kind: torch.zeros(size, dtype=kind, device=device) for kind in (torch.float32, torch.float64)}
        for total in self._sums.values():
            places = total.split_with_sizes([layer.size for layer in self.layers])
            for layer, place in zip(self.layers, places, strict=True):
                layer.place_in(place)
        self.begin(0)

    @property
    def total(self) -> Tensor:
        """See `RecordGradients.total`."""
        return self._sums[self._kind]

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        few = records <= FLOAT32_RECORDS and not self.blockwise
        self._kind = torch.float32 if few else torch.float64
        self._beta = int(self.blockwise)  # else the first overwrite what was there, which spares a pass over the memory
        if records == 0 or self.blockwise:
            self.total.zero_()

    def norms(self, features: Tensor, labels: Tensor) -> Floats:
        """See `RecordGradients.norms`."""
        norms: Floats = self.squares(features, labels).sqrt_().cpu().numpy()
        return norms

    def squares(self, features: Tensor, labels: Tensor) -> Tensor:
        """The squares of these norms."""
        self._inputs[: len(labels)] = features.flatten(1)
        self._forward(self._inputs[: _filled_up(len(labels))], records=len(labels))
        self._backward(labels)
        return sum((layer.squares() for layer in self.layers[1:]), self.layers[0].squares())

    def below(self, out: Tensor) -> Tensor:
        """The gradients of the features of the records just measured, in memory as `in_lines` gives it."""
        return self.layers[0].below(out)

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        rows = None if self.blockwise else factors.nonzero().view(-1)
        for layer in self.layers:
            layer.add(factors, rows, kind=self._kind, beta=self._beta)
        self._beta = 1

    def _forward(self, x: Tensor, *, records: int) -> None:
        for layer in self.layers:
            x = layer.forward(x, records)

    def _backward(self, labels: Tensor) -> None:
        last = self.layers[-1]
        means = self.loss.mean(last.values, out=last.values)
        torch.sub(means, self.loss.target(labels, last.dense.outputs), out=last.d)
        for after, before in pairwise(reversed(self.layers)):
            before.backward(after)


class _GhostLayer:
    """A layer at work. Memory is used again and again: fresh memory would cost more than the work on it."""

    def __init__(self, dense: Dense, weights: Iterator[Tensor], rows: int) -> None:
        self.dense = dense
        self.weight = next(weights)
        self.bias = next(weights) if dense.bias else None
        device = self.weight.device
        self._values = in_lines(rows, dense.outputs, device)
        self._d = in_lines(rows, dense.outputs, device)
        self._exact_d = torch.empty(rows, dense.outputs, dtype=torch.float64, device=device)
        self._exact_inputs = torch.empty(rows, dense.inputs, dtype=torch.float64, device=device)
        self._length = torch.empty(0)  # the squared norm of each record's inputs
        self._inputs = torch.empty(0)
        self.most = rows
        self._several = 0  # rows, with those that fill up
        self._sums: dict[torch.dtype, tuple[Tensor, Tensor]] = {}
        self.rows = 0

    @property
    def size(self) -> int:
        """How many weights there are."""
        return self.dense.outputs * (self.dense.inputs + self.dense.bias)

    def place_in(self, place: Tensor) -> None:
        """Where sums of its kind go."""
        weight, bias = place.split_with_sizes([self.weight.numel(), place.numel() - self.weight.numel()])
        self._sums[place.dtype] = weight.view(self.weight.shape), bias

    @property
    def values(self) -> Tensor:
        """The outputs."""
        return self._values[: self.rows]

    @property
    def d(self) -> Tensor:
        """The gradients of the outputs."""
        return self._d[: self.rows]

    def forward(self, x: Tensor, records: int) -> Tensor:
        """What the layer, and the function after it, make of its inputs: those of so many records, and filling."""
        self.rows, self._several, self._inputs = records, len(x), x[:records]
        exact = self._exact_inputs[: self.rows].copy_(self._inputs)
        self._length = torch.linalg.vector_norm(exact, dim=1).square_()
        out = self._values[: self._several]
        if self.bias is None:
            torch.mm(x, self.weight.t(), out=out)
        else:
            torch.addmm(self.bias, x, self.weight.t(), out=out)
        if self.dense.activation is not None:
            _in_runs(self.dense.activation.apply, out)
        return out

    def backward(self, after: "_GhostLayer") -> None:
        """The gradients of the outputs, from those of the next layer's."""
        torch.mm(after._d[: self._several], after.weight, out=self._d[: self._several])
        if self.dense.activation is not None:
            _in_runs(self.dense.activation.backward, self.d, self.values)

    def below(self, out: Tensor) -> Tensor:
        """The gradients of the inputs."""
        torch.mm(self._d[: self._several], self.weight, out=out[: self._several])
        return out[: self.rows]

    def squares(self) -> Tensor:
        """The squared norm of each record's gradient, in float64."""
        d = self._exact_d[: self.rows].copy_(self.d)
        length = self._length if self.bias is None else self._length + 1
        squares: Tensor = torch.linalg.vector_norm(d, dim=1).square_().mul_(length)
        return squares

    def add(self, factors: Tensor, kept: Tensor | None, *, kind: torch.dtype, beta: int) -> None:
        """Add the gradients of the records that are kept, times their factors, to beta times the sum of a kind.

        Edge cases: where it is not said who is kept, those are whose factors are not 0.
        """
        d, inputs = self._exact_d[: self.rows].mul_(factors[:, None]), self._exact_inputs[: self.rows]
        if kind == torch.float32:
            # Numbers too small for all digits of a float32 become 0, so that rounding lengthens no gradient.
            d, inputs = self.d.copy_(torch.nn.functional.hardshrink(d, _LEAST)), self._inputs
        if kept is None:  # what is left out may hold anything, and zero times infinity is not zero
            d, inputs = (torch.where((factors != 0)[:, None], one, 0.0) for one in (d, inputs))
        elif len(kept) < self.rows:
            d, inputs = d[kept], inputs[kept]
        weight_sum, bias_sum = self._sums[kind]
        weight_sum.addmm_(d.t(), inputs, beta=beta)
        if self.bias is not None:
            bias_sum.addmv_(d.t(), d.new_ones(len(d)), beta=beta)


def _in_runs(function: Callable[..., object], *matrices: Tensor) -> None:
    """Have a function of single numbers change the first matrix, so many rows at a time that each row is computed in
    one way: what is left over at the end of a run is, in another.
    """
    width = matrices[0].shape[1]
    rows = _RUN // width // _SIXTEEN * _SIXTEEN or 1 if matrices[0].is_cpu else len(matrices[0])
    for parts in zip(*(torch.split(one, rows) for one in matrices), strict=True):
        function(*parts)


def _filled_up(rows: int) -> int:
    return -(-rows // _SIXTEEN) * _SIXTEEN


def in_lines(rows: int, columns: int, device: torch.device) -> Tensor:
    """Zeros [rows, columns] with room for filling up, each row at the beginning of a line of the cache."""
    stride = -(-columns // _LINE) * _LINE
    return torch.zeros(_filled_up(rows), stride, device=device)[:, :columns]


def alone(program: Program, *, rows: int, device: torch.device) -> bool:
    """Whether a record's outputs and gradients have the same bits wherever it is among up to so many records.

    It is tried out for every place and number of records, on this machine, with as many threads as torch now has.
    """
    shapes = tuple((layer.inputs, layer.outputs, layer.bias) for layer in program.layers)
    return rows_are_alike(shapes, rows, str(device), torch.get_num_threads())


@lru_cache(maxsize=64)
def rows_are_alike(shapes: tuple[tuple[int, int, bool], ...], rows: int, device: str, _threads: int) -> bool:
    """See `alone`; layers of these shapes (inputs, outputs, whether there is a bias)."""
    generator = torch.Generator().manual_seed(0)
    sizes = [size for inputs, outputs, bias in shapes for size in (inputs * outputs, outputs)[: 1 + bias]]
    for _ in range(_PROBES):
        # Weights begin where those of a model do.
        parts = iter(torch.randn(sum(sizes), generator=generator).to(device).split_with_sizes(sizes))
        for inputs, outputs, bias in shapes:
            weights = [next(parts).view(outputs, inputs), *(next(parts) for _ in range(bias))]
            layer = _GhostLayer(Dense(inputs, outputs, bias, None), iter(weights), rows)
            for _ in range(-(-_NUMBERS // min(inputs, outputs))):
                record, gradient = (torch.randn(size, generator=generator) for size in (inputs, outputs))
                if not _alike(layer, record, gradient):
                    return False
    return True


def _alike(layer: _GhostLayer, record: Tensor, gradient: Tensor) -> bool:
    """Whether what a layer makes of a record, and of a gradient of its outputs, is the same in every place."""
    x, d, below = (in_lines(layer.most, one.numel(), layer.weight.device) for one in (record, gradient, record))
    x[:], d[:] = record, gradient
    expected: tuple[Tensor, Tensor] | None = None
    for several in range(_SIXTEEN, len(x) + 1, _SIXTEEN):
        outputs = layer.forward(x[:several], min(several, layer.most))
        torch.mm(d[:several], layer.weight, out=below[:several])
        expected = (outputs[0].clone(), below[0].clone()) if expected is None else expected
        if not ((outputs == expected[0]).all() and (below[:several] == expected[1]).all()):
            return False
    return True
