import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from incrowd.learning import machine_code
from incrowd.learning.paths.compiled import kernel, vector

unsigneds, kinds = st.sampled_from([np.uint16, np.uint32]), st.sampled_from([np.uint8, np.float32])


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
