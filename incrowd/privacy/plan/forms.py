"""Plans and rounds as plain data, so that they can be sent, signed and compared.

A form names its kind and version; a reader refuses every other. `fingerprint` is the same for the same form, on
any machine.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Number
from typing import Any

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget, Price, Relation
from incrowd.privacy.ledger.chain import canonical
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
    ThirdPartyClip,
)
from incrowd.privacy.plan.plan import SAMPLING, Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Cyclic, Schedule, Step, ThirdPartySampling

PlanForm = Mapping[str, Any]

PLAN, ROUND = "incrowd plan 2", "incrowd round 1"

CLIPS: dict[str, type[Any]] = {
    each.__name__: each
    for each in (ElementwiseClip, FixedClip, MedianClip, NormalisedClip, PerLayerClip, QuantileClip, ThirdPartyClip)
}
"""The clips that a plan may have, by the names that forms use; `SAMPLING` has the samplers."""

_PLAIN = (Number, str, Price, Relation, type(None))
_OURS = {Plan, PlanConfig, Schedule, Step, Budget, ThirdPartySampling, *CLIPS.values()}


@dataclass(frozen=True, kw_only=True)
class RoundForm:
    """The message about a round to a trainer: the plan, the number, and how contributions are clipped."""

    plan: str
    round: int
    clip: Clip | MedianClip


def to_json(stated: Plan | RoundForm) -> dict[str, Any]:
    """A plan or a round as plain JSON data.

    Guarantee: `from_json` gives back an equal one; nothing in it is private.
    """
    if isinstance(stated, RoundForm):
        return {"format": ROUND, "plan": stated.plan, "round": stated.round, "clip": _clip_to_json(stated.clip)}
    config = stated.config
    return {
        "format": PLAN,
        "unit": config.unit,
        "members": config.members,
        "sampling": _sampling_to_json(config.sampling),
        "noise_by": config.noise_by,
        "schedule": [asdict(step) for step in config.schedule.steps],
        "clip": _clip_to_json(config.clip),
        "steps": config.steps,
        "report_std": None,  # a plan of before could add a report; fingerprints stay those of plans without one
        **({"parties": config.parties, "colluders": config.colluders} if config.noise_by == "parties" else {}),
        **({"correlated": "square root"} if config.sampling is Cyclic else {}),  # other versions had another matrix
        "accountants": list(config.accountants),
        "budget": asdict(stated.budget),
    }


def from_json(form: PlanForm) -> Plan | RoundForm:
    """What `to_json` wrote; a plan that was given less noise than its budget needs is refused as any other."""
    rest = {name: value for name, value in form.items() if name != "format"}
    try:
        if form.get("format") == ROUND:
            return RoundForm(**{**rest, "clip": _read_clip(rest["clip"])})
        if form.get("format") == PLAN:
            return _read_plan(rest)
    except (KeyError, TypeError, AttributeError) as error:
        remedy = f"it is not whole ({error!r}): have it sent again"
        raise ConfigError(field="form", value=form.get("format"), remedy=remedy) from error
    raise ConfigError(field="format", value=form.get("format"), remedy=f"this incrowd reads {PLAN!r}, {ROUND!r}")


def check_ours(plan: object) -> None:
    """Refuse a plan, and any part of one, of another class than ours: it could state one noise and draw another."""
    left: list[object] = [plan]
    while left:
        stated = left.pop()
        if type(stated) in (_OURS if stated is not plan else {Plan}):
            names = [each.name for each in fields(stated)]  # type: ignore[arg-type]  # all of them are dataclasses
            left += (getattr(stated, name) for name in names)
        elif stated is not plan and isinstance(stated, tuple):
            left += stated
        elif stated is plan or not (isinstance(stated, _PLAIN) or stated in SAMPLING.values()):
            remedy = "give a Plan of ours, with our clips: others could state one noise and draw another"
            raise ConfigError(field="plan", value=type(stated).__name__, remedy=remedy)


def fingerprint(form: PlanForm) -> str:
    """SHA-256 of a form."""
    return hashlib.sha256(canonical(form).encode()).hexdigest()


def _read_plan(form: PlanForm) -> Plan:
    given = dict(form) | {
        "sampling": _read_sampling(form["sampling"]),
        "schedule": Schedule(tuple(Step(**step) for step in form["schedule"])),
        "clip": _read_clip(form["clip"]),
        "accountants": tuple(form["accountants"]),
    }
    if given.pop("report_std") is not None:
        raise ConfigError(field="report_std", value=form["report_std"], remedy="reports are gone: plan without one")
    budget, correlated = Budget(**given.pop("budget")), given.pop("correlated", None)
    plan = PlanConfig(**given).plan(budget)
    if to_json(plan).get("correlated") != correlated:
        raise ConfigError(field="correlated", value=correlated, remedy="another version's noise: use that version")
    return plan


def _sampling_to_json(sampling: Sampling) -> object:
    if isinstance(sampling, ThirdPartySampling):
        return {"third_party": sampling.name}
    return next(name for name, sampler in SAMPLING.items() if sampler is sampling)


def _read_sampling(form: Any) -> Sampling:
    if isinstance(form, dict):
        return ThirdPartySampling(name=str(form["third_party"]))
    if form not in SAMPLING:
        raise ConfigError(field="sampling", value=form, remedy=f"give one of {', '.join(SAMPLING)}")
    return SAMPLING[form]


def _clip_to_json(clip: Clip | MedianClip) -> dict[str, Any]:
    form = {each.name: getattr(clip, each.name) for each in fields(clip) if each.init}  # type: ignore[arg-type]  # all of ours are dataclasses
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in form.items()}
    return {"kind": type(clip).__name__, **listed}


def _read_clip(form: PlanForm) -> Any:
    kind = form["kind"]
    if kind not in CLIPS:
        raise ConfigError(field="clip", value=kind, remedy=f"give one of {', '.join(CLIPS)}")
    rest = {name: value for name, value in form.items() if name != "kind"}
    return CLIPS[kind](**{name: tuple(value) if isinstance(value, list) else value for name, value in rest.items()})
