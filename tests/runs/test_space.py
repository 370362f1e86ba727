import math

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError
from incrowd.runs.settings import load
from incrowd.runs.space import Axis, Choice, SearchRange, axis, drawn, grid


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local.epochs=1,5", Choice(key="local.epochs", values=("1", "5"))),
        (" local.epochs = 1 , 5 ", Choice(key="local.epochs", values=("1", "5"))),
        ("model.hidden=[200],[600, 100]", Choice(key="model.hidden", values=("[200]", "[600, 100]"))),
        (
            "privacy.clip={kind='fixed', clip_norm=1.0},{kind='median'}",
            Choice(key="privacy.clip", values=("{kind='fixed', clip_norm=1.0}", "{kind='median'}")),
        ),
        ("data.file='a,b.csv',\"c].csv\"", Choice(key="data.file", values=("'a,b.csv'", '"c].csv"'))),
        ("privacy.rounds=5..50", SearchRange(key="privacy.rounds", low=5, high=50, whole=True)),
        ("local.learning_rate=1e-3..1.0:log", SearchRange(key="local.learning_rate", low=1e-3, high=1, log=True)),
        ("server.momentum=.5 .. 0.99", SearchRange(key="server.momentum", low=0.5, high=0.99)),
    ],
)
def test_axes_are_read(text: str, expected: Axis) -> None:
    assert axis(text) == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("local.epochs", "grid"),
        ("=1,2", "grid"),
        ("local.epochs=", "local.epochs"),
        ("local.epochs=1,,2", "local.epochs"),
        ("local.epochs=1,2,1", "local.epochs"),
        ("local.epochs=5..1", "local.epochs"),
        ("server.momentum=0..1:log", "server.momentum"),
    ],
)
def test_what_is_no_axis_is_refused_by_name(text: str, field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        axis(text)
    assert refused.value.field == field


def test_a_grid_has_every_combination() -> None:
    points = grid([axis("local.epochs=1,5"), axis("server.kind=sgd,adam")])
    assert points == [
        ("local.epochs=1", "server.kind=sgd"),
        ("local.epochs=1", "server.kind=adam"),
        ("local.epochs=5", "server.kind=sgd"),
        ("local.epochs=5", "server.kind=adam"),
    ]
    assert grid([]) == [()]
    assert load(overrides=points[1]).server.kind == "adam"


def test_a_range_needs_random_search_and_a_key_comes_once() -> None:
    with pytest.raises(ConfigError, match="--random"):
        grid([axis("privacy.rounds=5..50")])
    for search in (grid, lambda axes: drawn(axes, count=2, randomness=SeededRandomness(seed=0))):
        with pytest.raises(ConfigError, match="twice"):
            search([axis("local.epochs=1,5"), axis("local.epochs=2")])


def values(text: str, *, count: int = 400) -> list[float]:
    points = drawn([axis(text)], count=count, randomness=SeededRandomness(seed=3))
    return [float(point[0].partition("=")[2]) for point in points]


def test_random_points_fill_their_ranges() -> None:
    plain, factors = np.array(values("server.momentum=0.2..0.6")), np.array(values("local.learning_rate=0.001..10:log"))
    assert ((plain >= 0.2) & (plain <= 0.6)).all()
    assert np.mean(plain) == pytest.approx(0.4, abs=5 * 0.4 / math.sqrt(12 * 400))
    logs = np.log10(factors)
    assert ((logs >= -3) & (logs <= 1)).all()
    assert np.mean(logs) == pytest.approx(-1, abs=5 * 4 / math.sqrt(12 * 400))
    assert sorted(values("privacy.rounds=3..7")) == [3, 4, 5, 6, 7]  # all there are, and no more
    assert sorted(values("privacy.rounds=1..3:log")) == [1, 2, 3]


def test_random_points_are_new_ones_and_the_same_for_the_same_seed() -> None:
    axes = [axis("local.epochs=1,5"), axis("server.kind=sgd,adam"), axis("privacy.rounds=1..1000000")]
    first, again, other = (drawn(axes, count=6, randomness=SeededRandomness(seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len(set(first)) == 6
    assert load(overrides=first[0]).privacy.rounds >= 1
    with pytest.raises(ConfigError, match="random"):
        drawn(axes, count=0, randomness=SeededRandomness(seed=1))
