import numpy as np

from incrowd.learning import Chunk, Cohort, CohortEngine, Execution, LocalTraining, mlp
from tests.learning.cohorts import CLASSES, FEATURES, RANDOMNESS, clients

MODEL = mlp((FEATURES, 70, CLASSES))


def cohort(seen: list[Chunk] | None = None) -> Cohort:
    engine = CohortEngine(MODEL, clients(), LocalTraining(learning_rate=0.3, batch_size=4), Execution(chunk=2))
    start = MODEL.initial(RANDOMNESS)
    see = None if seen is None else seen.append
    return Cohort(engine=engine, weights=start, clients=range(5), randomness=RANDOMNESS, round=1, see=see)


def test_who_looks_on_sees_every_chunk_and_changes_nothing() -> None:
    seen: list[Chunk] = []
    alone, watched = (one.summed(bound=1.0, parts=None, factors=np.ones_like) for one in (cohort(), cohort(seen)))
    assert np.array_equal(alone.total, watched.total)
    assert alone.norms.tolist() == watched.norms.tolist()
    assert sorted(client for chunk in seen for client in chunk.clients) == list(range(5))
    seen.clear()
    assert [chunk.clients for chunk in cohort(seen).chunks()] == [chunk.clients for chunk in seen]


def test_chunks_and_their_sum_are_of_the_same_training() -> None:
    rows = np.concatenate([chunk.rows() for chunk in cohort().chunks()]).astype(np.float64)
    bound = float(np.linalg.norm(rows, axis=1).max())
    found = cohort().summed(bound=bound, parts=MODEL.parts, factors=np.ones_like)
    assert found.norms.shape == (5, 2)
    assert np.abs(found.total - rows.sum(axis=0)).max() <= 5 * bound * 2.0**-18
