"""Bad luck: a server that is killed again as soon as it has begun, so that numbers of versions might be given twice."""

from pathlib import Path

import pytest

from incrowd.drawdiscard.desk import Returned
from incrowd.drawdiscard.kept_pool import HeldPool
from tests.drawdiscard.mail import asked

pytest.importorskip("pydantic")


def accepted(pool: HeldPool, numbers: range) -> list[int]:
    """The versions that these answers make, as devices may draw them."""
    made = []
    for number in numbers:
        version, row = pool.pool.draw_version()
        answer = pool.desk.read(row + 1 + number, pool.desk.hand_out(version, row, accepted=0).ticket)
        assert isinstance(answer, Returned)
        pool.enter(answer)
        made.append(max(pool.pool.state().versions))
    return made


def life(folder: Path, turn: int, *, clean: bool) -> list[int]:
    """A server that begins, accepts a few answers, and is killed before it keeps them, or ends as it should."""
    pool = HeldPool(asked(), folder=folder)
    pool.write(pool.keepsake(), clean=False)
    made = accepted(pool, range(5 * turn, 5 * turn + 5))
    if clean:
        pool.write(pool.keepsake(), clean=True)
    pool.close()
    return made


@pytest.mark.parametrize("clean", [False, True])
def test_no_two_rows_ever_have_one_number(tmp_path: Path, clean: bool) -> None:
    """The control is a server that always ends as it should."""
    made = [version for turn in range(4) for version in life(tmp_path / "own", turn, clean=clean)]
    assert len(set(made)) == len(made)
