"""Compiled and plain code propose the same, to the last bit."""

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Integers, SeededRandomness
from incrowd.privacy.mechanism import grid, proposal_loops, proposals

AS_EVER = "48e89ef562d2093ad4cbc5865fc54a683f8f1027558f8a3f28b903b1b6990cde"
SHAPES = st.sampled_from([grid.NORMAL, grid.LAPLACE])


def looked(
    work: Any, words: Integers, cell: proposals.SlotCells, sure: Integers, width_bits: int
) -> tuple[list[int], list[int]]:
    values = np.empty(len(words), np.int64)
    undecided = work.look(words, (cell, sure, width_bits), values)
    assert undecided.dtype == np.int32
    return values.tolist(), undecided.tolist()


@given(SHAPES, st.floats(6, 50.9), st.integers(0, 2**32), st.integers(0, 500))
def test_compiled_code_looks_at_words_as_plain_code_does(
    shape: grid.NoiseShape, scale_bits: float, seed: int, count: int
) -> None:
    cells = grid._Staircase.under(shape, 2.0**scale_bits)
    words = SeededRandomness(seed).stream("words").bits(count).view(np.int64)
    assert looked(proposal_loops, words, cells.cell, cells.sure, cells.width_bits) == looked(
        proposals, words, cells.cell, cells.sure, cells.width_bits
    )


@pytest.mark.parametrize("word", [0, -1, -(2**63), 2**63 - 1, 2**47, 2**47 - 1, 2**48 - 1])
@pytest.mark.parametrize("width_bits", [1, 25, 45])
def test_words_at_the_ends_are_looked_at_alike(word: int, width_bits: int) -> None:
    cell = np.arange(2**16, dtype=np.uint16)
    sure = np.full(2**16, 2 ** (46 - width_bits), np.int64)
    words = np.array([word, word])
    assert looked(proposal_loops, words, cell, sure, width_bits) == looked(proposals, words, cell, sure, width_bits)


@given(st.lists(st.booleans(), max_size=40))
def test_what_is_refused_leaves_and_the_rest_keeps_its_order(keep: list[bool]) -> None:
    expected = [3 * place for place, kept in enumerate(keep) if kept]
    for close in (proposal_loops.close, proposals.close):
        values = np.arange(len(keep), dtype=np.int64) * 3
        left = close(values, np.flatnonzero(~np.array(keep, bool)).astype(np.int32))
        assert values[:left].tolist() == expected


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(-(2**61), 2**61)), max_size=40), st.integers(-20, 30))
def test_compiled_code_adds_a_sum_as_plain_code_does(pairs: list[tuple[float, int]], exponent: int) -> None:
    total, noise = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs], np.int64)
    found, expected = (work.added(total, 2.0**exponent, noise) for work in (proposal_loops, proposals))
    assert found.tolist() == expected.tolist() == [round(a * 2.0**exponent) + b for a, b in pairs]


@pytest.mark.parametrize("work", [proposals, proposal_loops], ids=["plain", "compiled"])
def test_noise_of_a_seed_is_what_it_always_was(work: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three full blocks and one that is not, whose words follow each other as they did."""
    monkeypatch.setattr(grid._LOOPS, "_left", 0)
    monkeypatch.setattr(grid._LOOPS, "_work", work)
    stream = SeededRandomness(5).stream("noise", 2)
    values = grid.sample_noise(grid.NORMAL, scale=1.37 * 2**30, size=3 * 2**14 + 7, stream=stream)
    assert hashlib.sha256(values.astype("<i8").tobytes()).hexdigest() == AS_EVER
    assert values[:3].tolist() == [239861508, -435038584, -2166192485]
