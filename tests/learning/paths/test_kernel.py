import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from incrowd.learning import machine_code
from incrowd.learning.paths.compiled import kernel, vector
from incrowd.learning.paths.compiled.vector import LINE, add_products, add_rows, add_to_rows, fetch, pack


@numba.njit
def added_rows(out, table, where, places, numbers, factor):  # type: ignore[no-untyped-def]  # as numba finds them
    add_rows(out, table, where, places, numbers, factor)


@numba.njit
def added_to_rows(out, row, where, places, numbers, factor):  # type: ignore[no-untyped-def]  # as numba finds them
    add_to_rows(out, row, where, places, numbers, factor)


@numba.njit
def added_products(out, row, table, where, places, step):  # type: ignore[no-untyped-def]  # as numba finds them
    add_products(out, row, table, where, places, step)


@numba.njit
def packed(values, places, numbers, where):  # type: ignore[no-untyped-def]  # as numba finds them
    fetch(values, (where[0], where[0] + where[1]))
    return pack(values, places, numbers, where)


def floats(generator: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return generator.standard_normal(shape).astype(np.float32)


lines = st.integers(1, 20)
ROWS = 5
Pairs = tuple[NDArray[Any], NDArray[Any]]


def some_pairs(count: int, unsigned: type, kind: type, seed: int) -> Pairs:
    """Places and numbers, the first and the last of which are not to count."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, ROWS, count + 2).astype(unsigned), (255 * generator.random(count + 2)).astype(kind)


unsigneds, kinds = st.sampled_from([np.uint16, np.uint32]), st.sampled_from([np.uint8, np.float32])
pairs_of = st.builds(some_pairs, st.integers(0, 9), unsigneds, kinds, st.integers(0, 99))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(lines=lines, pairs=pairs_of, seed=st.integers(0, 99))
def test_rows_are_added_as_a_plain_loop_adds_them(lines: int, pairs: Pairs, seed: int) -> None:
    generator = np.random.default_rng(seed)
    width, (places, numbers) = lines * LINE, pairs
    out, table = floats(generator, 3 * width), floats(generator, (ROWS + 1) * width)
    expected = out.astype(np.float64)
    for k in range(1, len(places) - 1):
        row = table[LINE + int(places[k]) * width :][:width].astype(np.float64)
        expected[width : 2 * width] += 0.5 * float(numbers[k]) * row
    added_rows(out, table, (width, LINE, width, 1, len(places) - 1), places, numbers, 0.5)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-2)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(lines=lines, pairs=pairs_of, seed=st.integers(0, 99))
def test_a_row_is_added_to_others_as_a_plain_loop_adds_it(lines: int, pairs: Pairs, seed: int) -> None:
    generator = np.random.default_rng(seed)
    width, (places, numbers) = lines * LINE, pairs
    out, row = floats(generator, (ROWS + 1) * width), floats(generator, 2 * width)
    expected = out.astype(np.float64)
    for k in range(1, len(places) - 1):
        expected[LINE + int(places[k]) * width :][:width] += 0.5 * float(numbers[k]) * row[width:]
    added_to_rows(out, row, (LINE, width, width, 1, len(places) - 1), places, numbers, 0.5)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-2)


@settings(max_examples=60, deadline=None)
@given(lines=lines, pairs=st.integers(0, 5), step=st.integers(1, 7), seed=st.integers(0, 99))
def test_products_are_those_of_numpy(lines: int, pairs: int, step: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    width, rows = lines * LINE, 5
    out, row, table = floats(generator, 1 + rows * step), floats(generator, 2 * width), floats(generator, 6 * width)
    places = generator.permutation(rows).astype(np.uint32)
    expected = out.astype(np.float64)
    for place in places[:pairs].tolist():
        expected[1 + place * step] += row[width:].astype(np.float64) @ table[LINE + place * width :][:width]
    added_products(out, row, table, (1, width, LINE, width, 0, pairs), places, step)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(lines=lines, before=st.integers(0, 3), share=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 99))
def test_packing_keeps_what_is_not_zero_and_what_is_no_number(lines: int, before: int, share: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    width = lines * LINE
    values = floats(generator, LINE + width) * (generator.random(LINE + width) < share)
    values[LINE + 1] = np.nan
    places, numbers = np.zeros(width + before + LINE, np.uint32), np.zeros(width + before + LINE, np.float32)
    count = packed(values, places, numbers, (LINE, width, 100, before))
    kept = np.flatnonzero(values[LINE:])
    assert count == before + len(kept)
    np.testing.assert_array_equal(places[before:count], 100 + kept)
    np.testing.assert_array_equal(numbers[before:count], values[LINE:][kept])
    assert not numbers[:before].any()


def test_a_digest_follows_every_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "b.py").write_text("two")
    before = machine_code.digest_of(tmp_path)
    assert machine_code.digest_of(tmp_path) == before
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("six")  # as long as before
        after = machine_code.digest_of(tmp_path)
        assert after != before
        before = after
    assert vector.SOURCES.endswith(machine_code.digest_of(Path(vector.__file__).parent))
    loop: Any = kernel.train
    assert loop._cache._cache_file._source_stamp == vector.SOURCES


def added(folder: Path, before: str = "pass") -> list[str]:
    """What a fresh process gets that adds 2 times 3 to 1, with its compiled code in a folder, and how often it finds
    that there.
    """
    code = (
        f"{before}; import numpy as np; from incrowd.learning.paths.compiled import kernel; "
        "total = np.ones(1, np.float32); "
        "kernel.add_steps(np.full((1, 1), 3, np.float32), 0, 1, np.full(1, 2.0), total); "
        "print(total[0], sum(kernel.add_steps.stats.cache_hits.values()))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return done.stdout.split()


@pytest.mark.slow
def test_without_a_folder_for_it_code_is_compiled_all_the_same(tmp_path: Path) -> None:
    assert added(tmp_path, "import numba.core.caching as c; c.CacheImpl._locator_classes = []") == ["7.0", "0"]
    assert not list(tmp_path.rglob("*.nbi"))


@pytest.mark.slow
def test_what_another_release_left_on_disk_is_no_error(tmp_path: Path) -> None:
    assert added(tmp_path) == ["7.0", "0"]
    assert added(tmp_path) == ["7.0", "1"]
    found = list(tmp_path.rglob("*.nbi"))
    assert found
    for index in found:
        index.write_bytes(index.read_bytes().replace(b"numba", b"nambu"))
    assert added(tmp_path) == ["7.0", "0"]
