from incrowd.runs.search import axis, grid
from incrowd.runs.settings import load


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
