import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
)
from incrowd.privacy.plan.forms import CLIPS, RoundForm, fingerprint, from_json, to_json
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, Step
from incrowd.types import ThirdPartyClip, register

BUDGET = Budget(epsilon=1e4, delta=1e-5)
STEPS = Schedule((Step(rounds=2, cohort=4, noise_multiplier=1.7), Step(rounds=1, cohort=6, noise_multiplier=1 / 3)))
ALIKE = Schedule((Step(rounds=2, cohort=20, noise_multiplier=1.7),))
register("clips", "to nothing", lambda rows, _: 0 * rows)
EVERY_CLIP: list[Clip | MedianClip] = [
    ElementwiseClip(limit=0.1, size=7),
    FixedClip(clip_norm=0.1),
    MedianClip(floor=1e-9),
    NormalisedClip(),
    PerLayerClip(clip_norms=(0.1, 0.2), parts=(3, 4)),
    QuantileClip(clip_norm=1.0, bit_noise=9.0, quantile=0.3),
    ThirdPartyClip(name="to nothing", clip_norm=2.0),
]
PLANS: dict[str, Callable[[], Any]] = {
    "poisson": lambda: PlanConfig(members=20, schedule=STEPS, sampling=Poisson).plan(BUDGET),
    "fixed": lambda: PlanConfig(members=20, schedule=STEPS, sampling=FixedSize, accountants=("RDP",)).plan(BUDGET),
    "everyone": lambda: PlanConfig(members=20, schedule=ALIKE, sampling=Everyone).plan(BUDGET),
    "local": lambda: PlanConfig(members=20, schedule=ALIKE, sampling=Everyone, noise_by="party").plan(BUDGET),
    "correlated": lambda: PlanConfig.in_turns(clients=20, rounds=6, groups=3).calibrate(
        Budget(epsilon=2.0, delta=1e-5)
    ),
    "records": lambda: PlanConfig.of_records(
        records=50, rounds=3, batch_size=10, clip_norm=2.0, noise_multiplier=2.5
    ).plan(BUDGET),
    "round": lambda: RoundForm(plan="0" * 64, round=3, clip=FixedClip(clip_norm=1.5)),
}


@cache
def plan_of(name: str) -> Any:
    return PLANS[name]()


def test_every_clip_has_a_form() -> None:
    assert {type(clip).__name__ for clip in EVERY_CLIP} == set(CLIPS)


@pytest.mark.parametrize("name", PLANS)
def test_what_is_written_is_read_back_equal(name: str) -> None:
    form = to_json(plan_of(name))
    read = from_json(json.loads(json.dumps(form, allow_nan=False)))
    assert read == plan_of(name)
    assert fingerprint(to_json(read)) == fingerprint(form)


def test_clips_travel_with_their_rounds() -> None:
    for clip in EVERY_CLIP:
        told = RoundForm(plan="0" * 64, round=1, clip=clip)
        assert from_json(json.loads(json.dumps(to_json(told)))) == told


def test_no_two_plans_have_one_fingerprint() -> None:
    assert len({fingerprint(to_json(plan_of(name))) for name in PLANS}) == len(PLANS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"format": "incrowd plan 1"}, "format"),
        ({"format": None}, "format"),
        ({"sampling": "local"}, "sampling"),
        ({"noise_by": "nobody"}, "noise_by"),
        ({"clip": {"kind": "None"}}, "clip"),
        ({"clip": {}}, "form"),
        ({"more": 1}, "form"),
        ({"schedule": [{"rounds": 1}]}, "form"),
        ({"schedule": 3}, "form"),
        ({"budget": {"epsilon": 0.001, "delta": 1e-5}}, "epsilon"),
        ({"members": 2}, "cohort"),
        ({"report_std": 3.0}, "report_std"),
        ({"sampling": "cyclic"}, "cohort"),
    ],
)
def test_what_makes_no_plan_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(to_json(plan_of("poisson")) | changes)
    assert caught.value.field == field
