"""What a page says of three adversaries, which is only as good as what it assumes."""

import numpy as np
import pytest

from incrowd.drawdiscard.server import three_adversaries
from tests.drawdiscard.mail import asked


def test_where_answers_overwrite_the_paper_s_figures_are_shown() -> None:
    listener, internal, opportunist = three_adversaries(asked(merge=1.0))
    assert (listener["epsilon"], internal["epsilon"]) == (2.0, 2.0)
    assert internal["expected_loss"] == pytest.approx(3 / 8 * 2)
    assert 0 < opportunist["epsilon"] < 2


@pytest.mark.parametrize("changes", [{"merge": 0.25}, {"falls_every": 100, "merge": 1.0}])
def test_elsewhere_nothing_but_the_guarantee_is(changes: dict[str, object]) -> None:
    """Attack: a bound for pools that overwrite, printed for one that merges, would be too small."""
    views = three_adversaries(asked(**changes))
    assert [view["epsilon"] for view in views] == [2.0] * 3
    assert all("expected_loss" not in view for view in views)


def test_merging_adds_less_noise_than_overwriting_which_is_why() -> None:
    """The control: after as many updates a merged pool has added far less noise to an instance."""
    added = {}
    for merge in (1.0, 0.25):
        generator, rows = np.random.Generator(np.random.SFC64(1)), np.zeros((4, 20_000))
        for _ in range(40):
            drawn, place = generator.integers(4, size=2)
            answer = rows[drawn] + generator.laplace(size=rows.shape[1])
            rows[place] = (1 - merge) * rows[place] + merge * answer
        added[merge] = float(rows.var(axis=1).mean())
    assert added[0.25] < 0.5 * added[1.0]
