"""Files in the IDX format of MNIST: a magic number, the sizes, then unsigned bytes; plain or gzipped."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from incrowd.errors import DataError

_UNSIGNED_BYTES = 0x08
_REMEDY = "fetch the file again, or give the original"


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in one file.

    Edge cases: a missing or unreadable file, broken or truncated gzip, another magic number, another type than
    unsigned bytes, no values, fewer or more bytes than the header says: `DataError`, which names the file. A file is
    gzipped if it starts like one, whatever its name. No memory is taken because a header asks for it.
    """
    payload = _read(path)
    if len(payload) < 4 or payload[:2] != b"\0\0":
        raise DataError(f"{path}: not an IDX file, it starts with {bytes(payload[:4])!r}; {_REMEDY}")
    kind, dimensions = payload[2], payload[3]
    if kind != _UNSIGNED_BYTES:
        raise DataError(f"{path}: holds type 0x{kind:02x}, only unsigned bytes (0x08) are read here; convert the file")
    start = 4 + 4 * dimensions
    if len(payload) < start:
        raise DataError(f"{path}: ends inside its header of {dimensions} sizes; {_REMEDY}")
    shape = [int.from_bytes(payload[4 * i : 4 * i + 4], "big") for i in range(1, dimensions + 1)]
    if dimensions == 0 or 0 in shape:
        raise DataError(f"{path}: holds no values, its header says {shape}; {_REMEDY}")
    if len(payload) - start != math.prod(shape):
        raise DataError(f"{path}: holds {len(payload) - start} values where its header says {shape}; {_REMEDY}")
    return np.frombuffer(payload, np.uint8, offset=start).reshape(shape)


def _read(path: Path) -> bytearray:
    """The content, unpacked; writable, so that arrays over it are too."""
    try:
        payload = path.read_bytes()
        return bytearray(gzip.decompress(payload) if payload.startswith(b"\x1f\x8b") else payload)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: broken or truncated gzip ({error}); {_REMEDY}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path and the permissions") from error
