"""`sgemm` for compiled code, from torch's own library (MKL), else from scipy's."""

import ctypes
from pathlib import Path
from typing import Any

import llvmlite.binding
import torch
from numba import types
from numba.extending import get_cython_function_address

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
