"""Compiled code is loaded from folders that only this user can change, whatever the environment names.

Attack: torch's compiler keeps what it compiles in the temporary directory, in a folder whose name everybody knows.
Another user of the machine made it first, and what lay there was loaded and run: eleven shared objects for one model.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import pytest

from incrowd import _machine_code
from incrowd._private import compiled_code
from incrowd.learning import machine_code
from incrowd.learning.compiler import compiler_there, keep_private

pytestmark = pytest.mark.watched

PLANTS = ("anybody may write it", "another user's", "a link to another user's", "others may read it", "none there")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where compiled code goes that has no better place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiled_code.cache_clear()
    yield tmp_path / "cache" / "incrowd"
    compiled_code.cache_clear()


def planted(kind: str, folder: Path, given_away: Callable[[Path], None]) -> Path:
    if kind == "none there":
        return folder / "nowhere"
    (folder / "planted").mkdir(mode=0o700)
    if "another user's" in kind:
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        given_away(folder / "planted")
    if "link" in kind:
        (folder / "link").symlink_to(folder / "planted")
        return folder / "link"
    (folder / "planted").chmod({"anybody may write it": 0o777, "others may read it": 0o755}.get(kind, 0o700))
    return folder / "planted"


def places() -> list[Path]:
    """Where torch looks for compiled code."""
    from torch._inductor import codecache
    from torch._inductor.runtime.cache_dir_utils import cache_dir, triton_cache_dir

    module: Any = codecache
    graphs = Path(module.FxGraphCache._get_tmp_dir())
    return [
        Path(one) for one in (cache_dir(), triton_cache_dir(0), module._HEADER_DIR, module._HEADER_LOCK_DIR, graphs)
    ]


@pytest.mark.parametrize("kind", PLANTS)
def test_torch_loads_nothing_from_a_folder_that_is_not_ours(
    kind: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given_away: Callable[[Path], None]
) -> None:
    folder = planted(kind, tmp_path, given_away)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    assert any(place.is_relative_to(folder) for place in places())  # as torch does by itself
    assert keep_private() == home / "torch"
    assert all(place.is_relative_to(home) for place in places())
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_without_a_private_place_code_is_kept_for_this_process_alone(home: Path) -> None:
    home.mkdir(parents=True)
    home.chmod(0o777)
    folder = compiled_code("torch")
    assert not folder.is_relative_to(home)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


COMPILED = """
import torch
from incrowd.learning import machine_code
from incrowd.learning.compiler import compiled
def step(x):
    return x * 2 + 1
assert compiled(step)(torch.ones(3)).tolist() == [3, 3, 3]
"""


@pytest.mark.slow
def test_a_compilation_leaves_alone_what_others_have_put_into_the_temporary_directory(tmp_path: Path) -> None:
    if not compiler_there():
        pytest.skip("there is no C++ compiler: apt-get install g++")
    public, private = tmp_path / "tmp", tmp_path / "cache"
    public.mkdir()
    public.chmod(0o1777)
    names = {**os.environ, "TMPDIR": str(public), "XDG_CACHE_HOME": str(private)}
    names.pop("TORCHINDUCTOR_CACHE_DIR", None)
    asked = "from torch._inductor.runtime.cache_dir_utils import default_cache_dir as d; print(d())"
    told = subprocess.run([sys.executable, "-c", asked], env=names, capture_output=True, text=True, check=True)
    plant = Path(told.stdout.strip())
    assert plant.parent == public
    plant.mkdir(exist_ok=True)
    plant.chmod(0o777)
    subprocess.run([sys.executable, "-c", COMPILED], env=names, check=True, capture_output=True)
    assert not [one for one in plant.rglob("*") if one.is_file()]
    assert list((private / "incrowd" / "torch").rglob("*.so"))
    assert list((private / "incrowd" / "torch").rglob("*.gch"))


def doubled(number: int) -> int:
    return 2 * number


MAKERS: dict[str, Callable[[Callable[[int], int]], Callable[[int], int]]] = {
    "the promise's": _machine_code.compiled,
    "training's": machine_code.kept(__file__),
}


@pytest.mark.parametrize("kind", ["anybody may write it", "another user's", "a link to another user's", "ours"])
@pytest.mark.parametrize("maker", MAKERS)
def test_numba_loads_nothing_from_a_folder_that_is_not_ours(
    maker: str,
    kind: str,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given_away: Callable[[Path], None],
) -> None:
    folder = planted(kind, tmp_path, given_away)
    settings: Any = numba.config
    monkeypatch.setattr(settings, "CACHE_DIR", str(folder))
    assert MAKERS[maker](doubled)(4) == 8
    kept = [folder, home / "numba"]
    assert [bool(list(one.rglob("*.nbi"))) for one in kept] == ([True, False] if kind == "ours" else [False, True])
    assert str(folder) == settings.CACHE_DIR


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_machine_code_beside_its_source_is_as_safe_as_the_source(mode: int, home: Path, tmp_path: Path) -> None:
    source = tmp_path / "loops.py"
    source.write_text("def tripled(number):\n    return 3 * number\n")
    names: dict[str, Any] = {}
    exec(compile(source.read_text(), source, "exec"), names)  # noqa: S102  # as an import does
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__").chmod(mode)
    assert _machine_code.compiled(names["tripled"])(2) == 6
    assert bool(list((tmp_path / "__pycache__").glob("*.nbi"))) == (mode == 0o755)
    assert bool(list(home.rglob("*.nbi"))) == (mode == 0o777)
