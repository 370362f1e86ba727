"""How much there is to reckon in an offer, read off before anything of it is reckoned.

To price a plan takes a party time: half a second for each kind of round that draws its clients, and more the longer
noise is correlated; to try a model out takes as many passes over examples as are asked for. So what a server wants is
measured first, and refused where it is more than a party allows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from incrowd.errors import SpecificationRefused

_LARGEST, _LONGEST_LIST, _MOST_LAYERS = 2.0**53, 10_000, 100


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The weights and the rounds of an offer, of how many kinds its rounds are, and its passes over the examples."""

    weights: int
    rounds: int
    steps: int
    epochs: int


def extent_of(form: Mapping[str, Any]) -> Extent:
    """What an offer that nobody has priced comes to, by its own words.

    Edge cases: a plan with numbers beyond 2^53 or not finite, or with lists of more than 10,000 entries is refused
    (`SpecificationRefused`), and so is one that does not say how many rounds it has, and settings that ask for more
    than 10,000 batches or 100 hidden layers.
    """
    plan, size = form.get("plan"), form.get("size")
    if not isinstance(plan, Mapping):
        raise SpecificationRefused("an offer without a plan")
    for value in _values(plan):
        if isinstance(value, list) and len(value) > _LONGEST_LIST:
            raise SpecificationRefused(f"a plan with a list of {len(value)} entries: {_LONGEST_LIST} are the most")
        if _is_beyond(value, _LARGEST):
            raise SpecificationRefused("a plan with numbers that no plan has: beyond 2^53, or not finite")
    schedule = plan.get("schedule")
    steps = schedule if isinstance(schedule, list) else [None]
    rounds = [step.get("rounds") if isinstance(step, Mapping) else None for step in steps]
    if not all(isinstance(each, int) for each in [size, *rounds]):
        raise SpecificationRefused("an offer that does not say how many weights and rounds it has")
    total = sum(each or 0 for each in rounds)
    return Extent(weights=size or 0, rounds=total, steps=len(steps), epochs=_epochs(form.get("settings")))


def _epochs(settings: Any) -> int:
    """How often examples are passed over; numbers that only cost memory or time are refused."""
    found = {name: _section(settings, name) for name in ("local", "model", "features")}
    epochs, batches, hidden = (
        found["local"].get("epochs", 1),
        found["local"].get("batches"),
        found["model"].get("hidden"),
    )
    large = [value for value in (batches, *found["features"].values()) if _is_beyond(value, _LONGEST_LIST)]
    if large or not isinstance(epochs, int) or (isinstance(hidden, list) and len(hidden) > _MOST_LAYERS):
        raise SpecificationRefused("settings with numbers that no training has")
    return epochs


def _section(settings: Any, name: str) -> Mapping[str, Any]:
    found = settings.get(name) if isinstance(settings, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _is_beyond(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not abs(value) <= most


def _values(plan: Mapping[str, Any]) -> Iterator[Any]:
    """All that is in a plan, however deep."""
    left: list[Any] = [plan]
    while left:
        value = left.pop()
        yield value
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list) and len(value) <= _LONGEST_LIST:
            left += value
