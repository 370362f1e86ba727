import pytest

from incrowd._random import SeededRandomness
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


def values(text: str, *, count: int = 400) -> list[float]:
    points = drawn([axis(text)], count=count, randomness=SeededRandomness(seed=3))
    return [float(point[0].partition("=")[2]) for point in points]
