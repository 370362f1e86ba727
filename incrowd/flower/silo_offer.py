"""What a server offers silos to learn: the plan of each, what is learnt from, and how. Public, and signed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.flower.offer import OfferKind
from incrowd.flower.wire import Place, sealed
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.silo_plan import SiloPlan

FORMAT = "incrowd silo offer 1"

LAST = {"kind": "statement"}
"""What is asked after the last round, in place of a clip: what each silo may claim, and its report."""


@dataclass(frozen=True, kw_only=True)
class SiloOffer:
    """The plan of each silo, by its name and in order, with the number of weights, the columns that are learnt from,
    and the settings of model and training. With `classes` labels are so many classes.

    Guarantee: nothing is priced by reading it: the noise of a silo's rounds is found by the silo itself, from its
    plan's budget. Two offers with the same fingerprint are the same.

    Edge cases: what is not whole, or of another version, silos without a name of their own, plans of another number of
    rounds than the first, and a report without classes are a `ConfigError`.
    """

    plans: tuple[SiloPlan, ...]
    size: int
    columns: tuple[str, ...] = ()
    classes: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate.count(size=self.size, parties=len(self.plans))
        if self.classes is not None:
            _validate.count(classes=self.classes)
        if len(set(self.parties)) != len(self.plans):
            raise ConfigError(field="parties", value=self.parties, remedy="give each silo a name of its own")
        for plan in self.plans:
            _validate.count(steps=plan.steps)
            if plan.rounds != self.rounds:
                remedy = f"plan as many for each: the first has {self.rounds}"
                raise ConfigError(field="rounds", value=plan.rounds, remedy=remedy)
            if self.classes is None and (plan.count_std is not None or plan.report_std is not None):
                remedy = "it counts right labels: say how many classes there are"
                raise ConfigError(field="classes", value=None, remedy=remedy)

    @property
    def parties(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(plan.name for plan in self.plans)

    @property
    def rounds(self) -> int:
        """How many rounds there are at most."""
        return self.plans[0].rounds

    @property
    def weights(self) -> int:
        """How many weights a question has."""
        return self.size

    @property
    def model(self) -> str:
        """The kind of model, by the name that the settings have for it."""
        found = self.settings.get("model", {})
        return str(found.get("kind", "")) if isinstance(found, Mapping) else ""

    @property
    def cells(self) -> int:
        """How many numbers a report has: a row for each class, with one place more for what is no class."""
        return 0 if self.classes is None else self.classes * (self.classes + 1)

    @cached_property
    def fingerprint(self) -> str:
        """What tells it from every other offer."""
        return forms.fingerprint(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "format": FORMAT,
            "plans": [forms.to_json(plan) for plan in self.plans],
            "size": self.size,
            "columns": list(self.columns),
            "classes": self.classes,
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> "SiloOffer":
        """What `to_json` wrote."""
        if form.get("format") != FORMAT:
            raise ConfigError(field="format", value=form.get("format"), remedy=f"this incrowd reads {FORMAT!r}")
        plans, columns, settings = form.get("plans"), form.get("columns"), form.get("settings")
        if not (isinstance(plans, list) and isinstance(columns, list) and isinstance(settings, Mapping)):
            raise ConfigError(field="offer", value=FORMAT, remedy="it is not whole: have it sent again")
        return cls(
            plans=tuple(map(_silo_plan, plans)),
            size=form.get("size", 0),
            columns=tuple(map(str, columns)),
            classes=form.get("classes"),
            settings=dict(settings),
        )

    def to_bytes(self, key: Ed25519PrivateKey, *, kind: OfferKind = "offer") -> bytes:
        """The frame, signed by the server: see `Offer.to_bytes`."""
        place = Place(plan=self.fingerprint, round=0, party="")
        return sealed(kind, place, {"offer": self.to_json()}, b"", key=key)


def _silo_plan(form: Any) -> SiloPlan:
    stated = forms.from_json(form) if isinstance(form, Mapping) else None
    if not isinstance(stated, SiloPlan) or not isinstance(stated.name, str):
        raise ConfigError(field="plans", value=type(form).__name__, remedy="offer a plan for the records of each silo")
    return stated
