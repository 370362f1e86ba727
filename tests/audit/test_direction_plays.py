"""A device that names directions tells no more than it says, even to who knows all directions; a broken one does."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest

from incrowd import Specification
from incrowd.audit.devices import DeviceGame, DirectionGame, audit_specification
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism import whole_noise
from incrowd.privacy.mechanism.whole_noise import ChosenDirection
from tests.drawdiscard.mail import KEYS

Breakage = Callable[[], AbstractContextManager[None]]


def asked(**changes: object) -> Specification:
    keys = {**KEYS, "noise": "direction", "bound": "norm", "largest": None, **changes}
    return Specification.from_formula("opened ~ sender * words", **keys)


def broken(**changes: object) -> list[str]:
    (finding,), checks = audit_specification(asked(**changes), trials=1_200, seed=3)
    return [check.name for check in checks if not check.holds] + ([] if finding.holds else ["epsilon"])


def replaced(target: object, name: str, value: Any) -> Breakage:
    @contextmanager
    def breakage() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, name, value)
            yield

    return breakage


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "at_least"), [(0.5, -1.0), (2.0, 1.2), (4.0, 2.0)])
def test_a_right_device_passes_and_most_of_what_it_may_tell_is_found(epsilon: float, at_least: float) -> None:
    (finding,), checks = audit_specification(asked(epsilon=epsilon), trials=1_500, seed=1)
    assert [check.name for check in checks if not check.holds] == []
    assert finding.lower_bound is not None
    assert at_least < finding.lower_bound <= epsilon


def always_true(word: Callable[[], int], loss: int) -> bool:
    word()
    return loss < 0


def shorter(word: Callable[[], int], loss: int) -> bool:
    return _SURVIVES(word, 2 * loss)


_SURVIVES, _STEPS = whole_noise.survives, ChosenDirection.steps_of


def weighed(self: ChosenDirection, seed: int) -> Any:
    steps = _STEPS(self, seed)
    steps[0] *= 2
    return steps


BROKEN: dict[str, tuple[Breakage, str]] = {
    "never lies": (replaced(whole_noise, "survives", always_true), "epsilon"),
    "lies too rarely": (replaced(whole_noise, "survives", shorter), "epsilon"),
    "lies too rarely, by count": (replaced(whole_noise, "survives", shorter), "how often"),
    "numbers of several sizes": (replaced(ChosenDirection, "steps_of", weighed), "size of the numbers"),
    "one direction for all": (
        replaced(ChosenDirection, "named", lambda _, bounded, __: 5 if bounded[0] > 0 else 6),
        "come again",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_device_is_caught(name: str) -> None:
    breakage, witness = BROKEN[name]
    with breakage():
        found = broken()
    assert any(witness in one for one in found), found


def test_the_game_of_noise_is_not_for_directions() -> None:
    with pytest.raises(ConfigError, match="DirectionGame"):
        DeviceGame(specification=asked())


def test_what_is_named_is_one_of_what_was_tossed() -> None:
    play = DirectionGame(specification=asked()).play(1, 300)
    assert 0.6 < play.best.mean() < 0.82
    assert set(np.round(np.unique(play.scores), 6).tolist()) == {-2.0, 0.0, 2.0}
