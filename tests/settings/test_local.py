import pytest

from incrowd import Local
from incrowd.errors import ConfigError


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"epochs": 0},
        {"batch_size": 0},
        {"batches": 1.5},
        {"momentum": 1.0},
        {"momentum": -0.1},
        {"weight_decay": -1},
        {"proximal": -1},
        {"batches": 2, "batch_size": 3},
        {"choice": 0.0},
        {"choice": 1.0},
        {"choice": 0.5, "centre": 0.5},
        {"centre_length": 0.5},
        {"centre_length": 0.0, "centre": 0.1},
        {"centre_length": float("inf"), "centre": 0.1},
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        Local(**{"learning_rate": 0.1, **bad})  # type: ignore[arg-type]  # that is the point


def test_plain_is_the_gradient_alone() -> None:
    assert Local(learning_rate=0.1).plain
    for extra in ({"momentum": 0.5}, {"weight_decay": 0.5}, {"proximal": 0.5}):
        assert not Local(learning_rate=0.1, **extra).plain  # type: ignore[arg-type]  # each key is a number's
