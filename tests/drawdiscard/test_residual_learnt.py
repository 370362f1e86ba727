import math

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.drawdiscard.spam import ResidualTest
from incrowd.privacy.mechanism.device import Mechanism

SIZE = 200
MECHANISM = Mechanism(size=SIZE, clip=0.1, epsilon=math.log(32), privacy="feature")
GAUSSIAN = Mechanism(size=SIZE, clip=0.1, epsilon=4.0, delta=1e-5, noise="gaussian", privacy="feature")
PARENT = np.zeros(SIZE, np.float32)
SHARE = 0.01


def fresh(mechanism: Mechanism = MECHANISM, *, seed: int = 1, wanted: float = SHARE) -> ResidualTest:
    return ResidualTest(mechanism, turned_away=wanted, randomness=SeededRandomness(seed))


def shown(test: ResidualTest, residuals: Floats) -> NDArray[np.bool_]:
    """What the test says to answers with these residuals, in units of the noise's scale, one after the other."""
    unit = test.mechanism.noise_scale
    return np.array([test.accepts((-unit * row).astype(np.float32), PARENT, 1.0) for row in residuals])


def laplace(stream: Stream, rows: int, size: int = SIZE) -> Floats:
    return stream.laplaces(rows * size).reshape(rows, size)


def colluders(stream: Stream, rows: int) -> Floats:
    """Honest sizes, signs that they agreed upon."""
    return np.abs(laplace(stream, rows)) * np.where(np.arange(SIZE) % 3, 1.0, -1.0)


def mixed(honest: Floats, hostile: Floats, share: float, stream: Stream) -> tuple[Floats, NDArray[np.bool_]]:
    """Answers of which this share are hostile, and which those are."""
    theirs = stream.bits(len(honest)).astype(float) * 2.0**-64 < share
    return np.where(theirs[:, None], hostile, honest), theirs


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_colluders_are_told_by_what_they_agree_upon(share: float) -> None:
    stream = SeededRandomness(2).stream("colluders")
    given, theirs = mixed(laplace(stream, 3_000), colluders(stream, 3_000), share, stream)
    learning, fixed = fresh(), ResidualTest(MECHANISM, learns=False)
    said = shown(learning, given)
    late = np.arange(3_000) >= 1_500
    assert said[late & theirs].mean() < 0.05
    assert said[~theirs].mean() > 1 - 1.5 * SHARE
    assert shown(fixed, given)[theirs].mean() > 0.95  # the control: each of them looks honest


def test_colluders_do_not_make_honest_devices_seem_more_alike() -> None:
    """Those that lie beyond are left out of the medians: tight colluders would narrow them."""
    stream = SeededRandomness(17).stream("wide")
    shared = np.sign(stream.normals(4 * SIZE)).reshape(4, SIZE) / math.sqrt(SIZE)
    honest = laplace(stream, 4_000) + 4 * stream.normals(4 * 4_000).reshape(4_000, 4) @ shared
    sizes = -np.log(1 - (np.arange(SIZE) + 0.5) / SIZE)  # the same honest sizes and signs from all of them
    tight = np.tile(sizes * np.where(np.arange(SIZE) % 3, 1.0, -1.0), (4_000, 1))
    given, theirs = mixed(honest, tight, 0.25, stream)
    said, late = shown(fresh(), given), np.arange(4_000) >= 2_000
    assert said[late & ~theirs].mean() > 1 - 1.5 * SHARE
    assert said[late & theirs].mean() < 0.05


@pytest.mark.parametrize("mechanism", [MECHANISM, GAUSSIAN], ids=["laplace", "gaussian"])
def test_noise_alone_is_turned_away_as_rarely_as_wanted_whatever_was_learnt(mechanism: Mechanism) -> None:
    stream, wanted, rows = SeededRandomness(3).stream("noise"), 0.02, 12_000
    test = fresh(mechanism, wanted=wanted)
    draw = stream.normals if mechanism.noise == "gaussian" else stream.laplaces
    found = 1 - shown(test, draw(rows * SIZE).reshape(rows, SIZE)).mean()
    error = math.sqrt(wanted / rows)
    assert 0.4 * wanted - 4 * error < found < wanted + 4 * error


def poisons(stream: Stream, rows: int) -> dict[str, Floats]:
    """What attackers may fill the memory with: all of it passes the fixed limits."""
    quiet = 0.92 * laplace(stream, rows)
    loud = laplace(stream, rows) + 0.9
    one = laplace(stream, rows)
    one[:, 5] = 9.0
    flipped = laplace(stream, rows)
    flipped[:, :3] = 6.0 * np.where(np.arange(rows) % 2, 1.0, -1.0)[:, None]
    return {
        "quiet": quiet,
        "loud": loud,
        "one weight": one,
        "a few weights": flipped,
        "agreed": colluders(stream, rows),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["quiet", "loud", "one weight", "a few weights", "agreed"])
def test_who_fills_the_memory_keeps_no_noise_out(kind: str) -> None:
    stream = SeededRandomness(4).stream("poison")
    test, poison = fresh(), poisons(stream, 2_000)[kind]
    shown(test, poison)
    kept = test.state()
    said = []
    for row in laplace(stream, 4_000):  # each meets what was poisoned
        test.restore(kept)
        said.append(shown(test, row[None])[0])
    assert 1 - np.mean(said) < SHARE + 4 * math.sqrt(SHARE / 4_000)


def test_who_fills_the_memory_lets_nothing_in_that_the_fixed_limits_stop() -> None:
    stream = SeededRandomness(5).stream("poison")
    fixed = ResidualTest(MECHANISM, learns=False)
    probes = np.concatenate([scale * laplace(stream, 100) for scale in (0.5, 0.8, 1.0, 1.5, 2.0)])
    for poison in poisons(stream, 800).values():
        test = fresh()
        shown(test, poison)
        assert not (shown(test, probes) & ~shown(fixed, probes)).any()


def test_what_the_fixed_limits_turn_away_is_not_remembered() -> None:
    stream = SeededRandomness(9).stream("garbage")
    test, calm = fresh(), fresh()
    for row in laplace(stream, 500):
        shown(calm, row[None])
        shown(test, np.stack([1e3 * row, row, np.zeros(SIZE)]))
    for name, array in calm.state().items():
        assert np.array_equal(array, test.state()[name])


@pytest.mark.parametrize("cut", [0, 150, 231, 640])
def test_restored_from_its_state_it_goes_on_bit_for_bit(cut: int) -> None:
    stream = SeededRandomness(10).stream("answers")
    given, _ = mixed(laplace(stream, 1_500), colluders(stream, 1_500), 0.2, stream)
    test = fresh()
    shown(test, given[:cut])
    again = fresh(seed=2)  # with another secret
    again.restore(test.state())
    assert np.array_equal(shown(test, given[cut:]), shown(again, given[cut:]))
    for name, array in test.state().items():
        assert np.array_equal(array, again.state()[name])
