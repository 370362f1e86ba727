import sys

import pytest

from incrowd import _machine_code
from incrowd._machine_code import LoopsOrPlain
from incrowd.privacy.mechanism import proposal_loops, proposals

NAME = proposal_loops.__name__


def test_loops_are_loaded_when_that_has_become_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine_code, "WORTH", 100)
    loops = LoopsOrPlain(NAME, plain=proposals)
    assert loops.best(60) is proposals
    assert loops.best(39) is proposals
    assert loops.best(1) is proposal_loops
    assert loops.best(1) is proposal_loops


def test_without_numba_plain_code_has_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine_code, "WORTH", 100)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    loops = LoopsOrPlain(NAME, plain=proposals)
    assert [loops.best(60) is proposals for _ in range(4)] == [True] * 4
