"""Numbers against labels of yes and no, in pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd._ranks import roc_auc

ROWS = st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=1, max_size=30)


@given(rows=ROWS)
def test_it_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[bool, int]]) -> None:
    yes, no = ([number for positive, number in rows if positive is wanted] for wanted in (True, False))
    pairs = [(a > b) + (a == b) / 2 for a in yes for b in no]
    positive, numbers = np.array([one for one, _ in rows]), np.array([number for _, number in rows], np.float64)
    assert roc_auc(positive, numbers) == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)
