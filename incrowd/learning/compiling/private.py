"""Where torch keeps what it compiles, and loads it from: a folder of this user alone.

Torch takes a folder in the temporary directory, which another user of the machine may have made, and runs what lies
there. So all places where it looks are told to it before it compiles.
"""

import os
from pathlib import Path
from typing import Any

from incrowd._private import check_ours, compiled_code
from incrowd.errors import ConfigError

LOCAL = {"fx_graph_remote_cache": False}
"""Settings for torch's compiler: code that others have compiled is not asked for over a network."""

_TORCH, _TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
_HEADERS = "precompiled_headers"


def keep_private() -> Path:
    """Have torch keep and look for compiled code in a private folder: the one that the environment names, if it is
    such a folder, or `incrowd._private.compiled_code`.

    Guarantee: nobody but this user can read or write the folder, or change the way to it.
    """
    named = os.environ.get(_TORCH)
    folder = Path(named).absolute() if named and _is_private(named) else compiled_code("torch")
    if named != str(folder):
        os.environ[_TORCH] = str(folder)
        _forget()
    os.environ[_TRITON] = str(folder / "triton")
    _place_headers(folder / _HEADERS)
    return folder


def _is_private(folder: str) -> bool:
    try:
        check_ours(folder, secret=True)
    except (ConfigError, OSError):
        return False
    return Path(folder).is_dir()


def _forget() -> None:
    """Have torch forget the files of the folder that it used before."""
    from torch._inductor.utils import clear_caches

    clear_caches()


def _place_headers(folder: Path) -> None:
    """Have torch precompile its headers there, which otherwise go to the temporary directory whatever it is told."""
    from torch._inductor import codecache

    module: Any = codecache
    if getattr(module, "_HEADER_DIR", None) != str(folder):
        module._HEADER_DIR, module._HEADER_LOCK_DIR = str(folder), str(folder / "locks")
        module._precompile_header.cache_clear()
