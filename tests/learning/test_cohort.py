import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from incrowd import Local
from incrowd.learning import CohortEngine, Contributions, EngineCohort, Execution, mlp
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, clients

MODEL = mlp((FEATURES, 70, CLASSES))


def cohort(seen: list[Contributions] | None = None, *, chunk: int = 2, dead: float = 0.5) -> EngineCohort:
    local, execution = Local(learning_rate=0.3, batch_size=4), Execution(chunk=chunk)
    engine = CohortEngine(MODEL, clients(dead=dead), local, execution)
    start = MODEL.initial(RANDOMNESS)
    see = None if seen is None else seen.append
    return EngineCohort(engine=engine, weights=start, clients=range(5), randomness=RANDOMNESS, round=1, see=see)


ways = pytest.mark.parametrize(("chunk", "dead"), [(2, 0.5), (2, 0.8), (1, 0.8)])  # examples of 0.8 count as sparse


@ways
def test_chunks_and_their_sum_are_of_the_same_training(chunk: int, dead: float) -> None:
    one = cohort(chunk=chunk, dead=dead)
    rows = np.concatenate([chunk.rows() for chunk in one.chunks()]).astype(np.float64)
    bound = float(np.linalg.norm(rows, axis=1).max())
    found = one.summed(bound=bound, parts=MODEL.parts, factors=np.ones_like)
    parts = np.split(rows, np.cumsum(MODEL.parts)[:-1], axis=1)
    expected = np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)
    assert (found.norms >= expected).all()
    assert found.norms == pytest.approx(expected, rel=2**-15)
    assert np.abs(found.total - rows.sum(axis=0)).max() <= 5 * bound * 2.0**-18


@pytest.mark.slow
@pytest.mark.parametrize("widths", [(FEATURES, 70, CLASSES), (FEATURES, 700)], ids=str)
def test_one_sparse_contribution_enters_as_no_more_than_the_bound(widths: tuple[int, ...]) -> None:
    """In exact arithmetic; a sum of one contribution shows what entered."""
    model = mlp(widths)
    engine = CohortEngine(model, clients(dead=0.8), Local(learning_rate=0.3, batch_size=4), Execution(chunk=1))
    for client in range(4):
        one = EngineCohort(
            engine=engine, weights=model.initial(RANDOMNESS), clients=[client], randomness=RANDOMNESS, round=0
        )
        (row,) = next(iter(one.chunks())).rows().tolist()
        exact = sum(Fraction(x) ** 2 for x in row)
        bound = 0.5 * math.sqrt(exact)
        found = one.summed(bound=bound, parts=None, factors=partial(np.divide, bound))
        assert Fraction(float(found.norms[0, 0])) ** 2 >= exact
        entered = sum(Fraction(x) ** 2 for x in found.total.tolist())
        assert 0.999 <= entered / Fraction(bound) ** 2 <= 1
