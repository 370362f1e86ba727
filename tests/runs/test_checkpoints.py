from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from safetensors.numpy import load

from incrowd.errors import DataError
from incrowd.runs.outbox import Checkpoints, to_bytes

SHAPES = arrays_of.array_shapes(min_dims=0, min_side=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["f8", "f4", "i8", "u1"])
@given(data=st.data())
def test_arrays_come_back_to_the_last_bit(kind: str, data: st.DataObject) -> None:
    array = data.draw(arrays_of.arrays(kind, SHAPES))
    back = load(to_bytes({"a": array, "of a view": array.T}))
    assert back["a"].dtype == array.dtype
    assert back["a"].shape == array.shape
    assert back["a"].tobytes() == array.tobytes()
    assert back["of a view"].tobytes() == array.T.tobytes()


def test_what_was_cut_off_is_not_taken_for_a_state_and_goes_away(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": np.zeros(3)})
    cut_off = tmp_path / "round-000002.safetensors.part"
    cut_off.write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("of the user")
    assert checkpoints.rounds() == [1]
    checkpoints.save(3, {"a": np.zeros(3)})
    assert not cut_off.exists()
    assert (tmp_path / "notes.txt").exists()


def test_a_damaged_newest_is_named(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": np.arange(3.0)})
    checkpoints.save(2, {"a": np.arange(3.0)})
    newest = tmp_path / "round-000002.safetensors"
    newest.write_bytes(newest.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"round-000002\.safetensors cannot be read .* delete it"):
        checkpoints.latest()
    newest.unlink()
    assert checkpoints.latest() is not None
