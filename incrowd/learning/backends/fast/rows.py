"""Loops over rows of numbers, a vector register at a time, for compiled code to call.

numba does not find by itself that a row can stay in registers while others are added to it, so these loops are spelt
out for LLVM. Rows are multiples of `LINE` long, and arrays begin at a line of the cache: a vector that crosses lines
takes twice as long to load. `where` says in which part of flat arrays all happens; pairs (places[k], numbers[k]) count
for k from begin to end.
"""

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from incrowd.learning.execution import LINE
from incrowd.learning.machine_code import SETTINGS, Loop, kept

_NAME = "incrowd_sgemm"  # compiled code on disk finds it by this name


def _found() -> int | None:
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))
    for library in libraries:
        try:
            return ctypes.cast(ctypes.CDLL(str(library)).sgemm_, ctypes.c_void_p).value
        except (AttributeError, OSError):
            continue
    try:
        address: int = get_cython_function_address("scipy.linalg.cython_blas", "sgemm")
    except (ImportError, ValueError):
        return None
    return address


ADDRESS = _found()
if ADDRESS is not None:
    llvmlite.binding.add_symbol(_NAME, ADDRESS)

_function: Any = types.ExternalFunction
sgemm: Any = _function(_NAME, types.void(*[types.intp] * 13))
"""sgemm of Fortran: 13 addresses, of matrices column by column."""

_HOST = llvmlite.binding.get_host_cpu_features()
_LANES = 16 if _HOST.get("avx512f") else 8 if _HOST.get("avx2") else 4  # float32 numbers in a vector register
_REGISTERS = 8  # hold a piece of a row

_FLOAT, _PLACE = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, _LANES)
_FUSED = ("contract",)  # a product and a sum may be one instruction
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LEAST, _MOST = np.float32(-87), np.float32(88)
_PER_DOUBLING = np.float32(1 / math.log(2))
_DOUBLING, _DOUBLING_REST = np.float32(355 / 512), np.float32(math.log(2) - 355 / 512)

compiled = kept(__file__)
"""Machine code of a function that Python calls, kept on disk if there is a folder for it."""


def inner(function: Loop) -> Loop:
    """Machine code of a function that only compiled code calls, which is made in half the time."""
    compile_: Any = numba.njit
    loop: Loop = compile_(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **SETTINGS)
    return loop


def _declared(build: Any, kind: Any, name: str) -> Any:
    insert: Any = cgutils.get_or_insert_function
    return insert(build.module, kind, name)


def _splat(build: Any, number: Any, kind: Any = _VECTOR) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    lanes = ir.VectorType(ir.IntType(32), _LANES)
    first = build.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    return build.shuffle_vector(first, undefined, ir.Constant(lanes, [0] * _LANES))


def _vectors(build: Any, start: Any, count: int) -> list[Any]:
    """Pointers to so many vectors in a row."""
    several = [build.gep(start, [ir.Constant(_PLACE, _LANES * q)]) for q in range(count)]
    return [build.bitcast(one, _VECTOR.as_pointer()) for one in several]


def _load(build: Any, vectors: list[Any]) -> list[Any]:
    return [build.load(one, align=4) for one in vectors]


def _store(build: Any, values: list[Any], vectors: list[Any]) -> None:
    for value, one in zip(values, vectors, strict=True):
        build.store(value, one, align=4)


def _zero() -> Any:
    return ir.Constant(_VECTOR, [0.0] * _LANES)


def _added(build: Any, left: list[Any], right: list[Any]) -> list[Any]:
    return [build.fadd(x, y, flags=_FUSED) for x, y in zip(left, right, strict=True)]


def _sums(build: Any, sums: list[Any], left: list[Any], right: list[Any]) -> list[Any]:
    """Sums plus products."""
    products = [build.fmul(x, y, flags=_FUSED) for x, y in zip(left, right, strict=True)]
    return _added(build, sums, products)


def _loop(build: Any, begin: Any, end: Any, step: int, carried: list[Any], body: Callable[..., list[Any]]) -> Any:
    """While i + step <= end: carried = body(i, carried), i += step. Gives the last i and what was carried."""
    before, head, inside, after = build.block, *(build.append_basic_block() for _ in range(3))
    build.branch(head)
    build.position_at_end(head)
    place = build.phi(_PLACE)
    place.add_incoming(begin, before)
    phis = [build.phi(one.type) for one in carried]
    following = build.add(place, ir.Constant(_PLACE, step))
    build.cbranch(build.icmp_signed("<=", following, end), inside, after)
    build.position_at_end(inside)
    results = body(place, phis)
    place.add_incoming(following, build.block)
    for phi, one, result in zip(phis, carried, results, strict=True):
        phi.add_incoming(one, before)
        phi.add_incoming(result, build.block)
    build.branch(head)
    build.position_at_end(after)
    return place, phis


def _pieces(build: Any, width: Any, body: Callable[[Any, int], None]) -> None:
    """Go through a row of `width` numbers, as many registers at a time as can be."""
    place = ir.Constant(_PLACE, 0)
    for registers in range(_REGISTERS, 0, -1):

        def piece(now: Any, _: list[Any], registers: int = registers) -> list[Any]:
            body(now, registers)
            return []

        place, _ = _loop(build, place, width, registers * _LANES, [], piece)


def _arguments(context: Any, build: Any, signature: Any, values: Any) -> list[Any]:
    """Pointers for arrays, the parts of tuples, other values themselves."""
    arguments: list[Any] = []
    for kind, value in zip(signature.args, values, strict=True):
        if isinstance(kind, types.Array):
            arguments.append(context.make_array(kind)(context, build, value).data)
        elif isinstance(kind, types.BaseTuple):
            unpack: Any = cgutils.unpack_tuple
            arguments += unpack(build, value)
        else:
            arguments.append(value)
    return arguments


def _whole(where: Any) -> Any:
    tuple_: Any = types.UniTuple
    return tuple_(types.int64, len(where))


def _pair(build: Any, places: Any, numbers: Any, k: Any, factor: Any) -> tuple[Any, Any]:
    """The place of pair k, and in all lanes its number times a factor."""
    number = build.load(build.gep(numbers, [k]))
    if number.type != _FLOAT:
        number = build.uitofp(number, _FLOAT)
    return build.zext(build.load(build.gep(places, [k])), _PLACE), _splat(build, build.fmul(number, factor))


@intrinsic
def _add_rows(_: Any, out: Any, table: Any, where: Any, places: Any, numbers: Any, factor: Any) -> Any:
    signature = types.void(out, table, _whole(where), places, numbers, types.float32)

    def generate(context: Any, build: Any, signature: Any, values: Any) -> Any:
        out, table, out_at, table_at, width, begin, end, places, numbers, factor = _arguments(
            context, build, signature, values
        )
        out, table = build.gep(out, [out_at]), build.gep(table, [table_at])

        def piece(now: Any, registers: int) -> None:
            def add(k: Any, sums: list[Any]) -> list[Any]:
                place, number = _pair(build, places, numbers, k, factor)
                row = build.gep(table, [build.add(build.mul(place, width), now)])
                return _sums(build, sums, [number] * registers, _load(build, _vectors(build, row, registers)))

            def add_several(k: Any, sums: list[Any]) -> list[Any]:
                # A sum has to wait for the one before it, so there are several.
                ways = [sums[begin : begin + registers] for begin in range(0, len(sums), registers)]
                ks = [build.add(k, ir.Constant(_PLACE, way)) for way in range(len(ways))]
                return [one for k, way in zip(ks, ways, strict=True) for one in add(k, way)]

            there = _vectors(build, build.gep(out, [now]), registers)
            ways = max(1, _REGISTERS // 2 // registers)
            sums = _load(build, there) + [_zero()] * registers * (ways - 1)
            k, sums = _loop(build, begin, end, ways, sums, add_several)
            for begin_ in range(registers, len(sums), registers):
                sums[:registers] = _added(build, sums[:registers], sums[begin_ : begin_ + registers])
            sums = sums[:registers]
            _store(build, sums if ways == 1 else _loop(build, k, end, 1, sums, add)[1], there)

        _pieces(build, width, piece)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _add_to_rows(_: Any, out: Any, row: Any, where: Any, places: Any, numbers: Any, factor: Any) -> Any:
    signature = types.void(out, row, _whole(where), places, numbers, types.float32)

    def generate(context: Any, build: Any, signature: Any, values: Any) -> Any:
        out, row, out_at, row_at, width, begin, end, places, numbers, factor = _arguments(
            context, build, signature, values
        )
        out, row = build.gep(out, [out_at]), build.gep(row, [row_at])

        def piece(now: Any, registers: int) -> None:
            kept = _load(build, _vectors(build, build.gep(row, [now]), registers))

            def add(k: Any, _: list[Any]) -> list[Any]:
                place, number = _pair(build, places, numbers, k, factor)
                there = _vectors(build, build.gep(out, [build.add(build.mul(place, width), now)]), registers)
                _store(build, _sums(build, _load(build, there), [number] * registers, kept), there)
                return []

            _loop(build, begin, end, 1, [], add)

        _pieces(build, width, piece)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def _fetch(_: Any, numbers: Any, where: Any) -> Any:
    signature = types.void(numbers, _whole(where))
    step = 4 * LINE // (numbers.dtype.bitwidth // 8)

    def generate(context: Any, build: Any, signature: Any, values: Any) -> Any:
        numbers, begin, end = _arguments(context, build, signature, values)
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        fetch = _declared(build, ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag]), "llvm.prefetch.p0")
        read, keep, data = (ir.Constant(flag, value) for value in (0, 3, 1))

        def line(now: Any, _: list[Any]) -> list[Any]:
            build.call(fetch, [build.bitcast(build.gep(numbers, [now]), byte), read, keep, data])
            return []

        # Lines need not begin at `begin`, so one more may be touched.
        _loop(build, begin, build.add(end, ir.Constant(_PLACE, 2 * step - 1)), step, [], line)
        return context.get_dummy_value()

    return signature, generate


# Only compiled code calls the functions below.

add_rows: Any = _add_rows
"""add_rows(out, table, (out_at, table_at, width, begin, end), places, numbers, factor):

out[out_at:][:width] += factor * sum of numbers[k] * table[table_at + places[k] * width:][:width].
"""
add_to_rows: Any = _add_to_rows
"""add_to_rows(out, row, (out_at, row_at, width, begin, end), places, numbers, factor):

out[out_at + places[k] * width:][:width] += factor * numbers[k] * row[row_at:][:width] for every pair.
"""
fetch: Any = _fetch
"""fetch(numbers, (begin, end)): ask for numbers[begin:end], which will be needed soon, and do not wait for them."""


@inner
def exp(x: np.float32) -> np.float32:
    """At most 2^-21 of it off: 2^k e^r, r at most log(2) / 2 from 0; the library's takes one number at a time.

    It is 0 or infinite beyond the range of float32, and NaN of NaN.
    """
    held = min(max(x, _LEAST), _MOST)
    held = held if x == x else _ZERO
    k = np.floor(held * _PER_DOUBLING + _HALF)
    r = held - k * _DOUBLING - k * _DOUBLING_REST  # k times the first is exact
    p = _ONE + r * np.float32(1 / 7)
    p = _ONE + p * r * np.float32(1 / 6)
    p = _ONE + p * r * np.float32(1 / 5)
    p = _ONE + p * r * np.float32(1 / 4)
    p = _ONE + p * r * np.float32(1 / 3)
    p = _ONE + p * r * _HALF
    p = _ONE + p * r
    value = p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    value = _ZERO if x < _LEAST else value
    value = np.float32(np.inf) if x > _MOST else value
    result: np.float32 = value if x == x else x
    return result
