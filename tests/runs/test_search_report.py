from typing import Any

import pytest

from incrowd.runs.folder import Summary
from incrowd.runs.search import best_of, ranked


def row(accuracy: float | None, loss: float | None, **settings: Any) -> Summary:
    return {
        "settings": settings or {"rate": 1.0},
        "accuracy": accuracy,
        "loss": loss,
        "epsilon": 1.0,
        "rounds": 2,
        "seconds": 0.5,
        "run": "here",
    }


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ([], None),
        ([row(0.5, 1.0), row(0.9, 2.0), row(0.6, 0.1)], 1),
        ([row(0.9, 2.0), row(0.9, 1.0)], 1),
        ([row(0.9, 1.0), row(0.9, 1.0)], 0),
        ([row(0.9, None), row(0.9, 99.0)], 1),
        ([row(None, 2.0), row(None, None), row(None, 1.0)], 2),
        ([row(0.1, None)], 0),
    ],
)
def test_the_best_is_found(rows: list[Summary], best: int | None) -> None:
    assert best_of(rows) == best
    if best is not None:
        assert ranked(rows)[0] is rows[best]
