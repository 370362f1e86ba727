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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (SOME[:3], "not an IDX file"),
        (b"<html>", "not an IDX file, it starts with b'<htm'"),
        (b"\x01" + SOME[1:], "not an IDX file"),
        (SOME[:2] + b"\x0d" + SOME[3:], "holds type 0x0d"),
        (SOME[:9], "ends inside its header of 2 sizes"),
        (SOME[:12], r"holds 0 values where its header says \[2, 3\]"),
        (SOME[:-1], r"holds 5 values where its header says \[2, 3\]"),
        (SOME + b"\0", "holds 7 values where"),
        (SOME[:4] + b"\xff" * 8, r"holds 0 values where its header says \[4294967295, 4294967295\]"),
        (SOME[:4] + bytes(8), r"holds no values, its header says \[0, 0\]"),
        (b"\0\0\x08\0x", r"holds no values, its header says \[\]"),
        (PACKED[:-9], "broken or truncated gzip"),
        (PACKED[:5], "broken or truncated gzip"),
        (PACKED[:-8] + bytes(8), "broken or truncated gzip"),
        (PACKED[:10] + b"\xff" * 20, "broken or truncated gzip"),
    ],
)
def test_a_bad_file_is_named_with_its_fault(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(DataError, match=message) as error:
        read_idx(path)
    assert str(path) in str(error.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no-such-file: cannot be read \(No such file"):
        read_idx(tmp_path / "no-such-file")
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read_idx(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda tail: PACKED[:12] + tail)))
def test_whatever_the_bytes_the_only_error_is_ours(tmp_path: Path, content: bytes) -> None:
    # One file is written again and again on purpose.
    try:
        array = read_idx(write(tmp_path, content))
    except DataError:
        return
    assert array.size > 0
