import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from incrowd.data.idx import read_idx
from incrowd.errors import DataError

SOME = bytes.fromhex("00000802 00000002 00000003") + bytes(range(6))
PACKED = gzip.compress(SOME, mtime=0)  # without the time, which would get into the names of tests


def write(folder: Path, content: bytes) -> Path:
    path = folder / "some-idx2-ubyte"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("content", [SOME, PACKED])
def test_plain_and_gzipped_files_are_read(tmp_path: Path, content: bytes) -> None:
    array = read_idx(write(tmp_path, content))
    np.testing.assert_array_equal(array, [[0, 1, 2], [3, 4, 5]])
    assert array.dtype == np.uint8
    assert array.flags.writeable


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda tail: PACKED[:12] + tail)))
def test_whatever_the_bytes_the_only_error_is_ours(tmp_path: Path, content: bytes) -> None:
    # One file is written again and again on purpose.
    try:
        array = read_idx(write(tmp_path, content))
    except DataError:
        return
    assert array.size > 0
