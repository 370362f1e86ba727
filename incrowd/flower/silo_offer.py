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
from incrowd.privacy.plan.plan import Plan

FORMAT = "incrowd silo offer 2"

_NOT_WHOLE = "it is not whole: have it sent again"

LAST = {"kind": "statement"}
"""What is asked after the last round, in place of a clip: what each silo may claim, and its report."""


@dataclass(frozen=True, kw_only=True)
class SiloOffer:
    """The plan of each party as plain data, by its name, with the number of weights, the columns that are learnt from,
    and the settings of model and training. With `classes` labels are so many classes.

    Guarantee: nothing is priced by reading it. Two offers with the same fingerprint are the same.

    Edge cases: what is not whole, or of another version, is a `ConfigError`.
    """

    plans: Mapping[str, forms.PlanForm]
    rounds: int
    size: int
    columns: tuple[str, ...] = ()
    classes: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate.count(size=self.size, parties=len(self.plans), rounds=self.rounds)
        if self.classes is not None:
            _validate.count(classes=self.classes)

    @property
    def parties(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self.plans)

    def plan(self, party: str) -> Plan:
        """The plan of one of its parties: this prices it.

        Edge cases: a plan of whole clients, of more rounds than there are, or of a report without classes, and one that
        does not keep to its budget, are a `ConfigError`.
        """
        try:
            stated = forms.from_json(self.plans[party])
        except (ArithmeticError, RecursionError) as error:
            remedy = "give numbers that a plan can have"
            raise ConfigError(field="plans", value=type(error).__name__, remedy=remedy) from error
        if not isinstance(stated, Plan) or stated.unit != "record":
            remedy = "offer a plan for the records of each silo"
            raise ConfigError(field="plans", value=self.plans[party].get("format"), remedy=remedy)
        if stated.rounds > self.rounds:
            remedy = f"there are {self.rounds} rounds: plan at most as many for each"
            raise ConfigError(field="rounds", value=stated.rounds, remedy=remedy)
        if self.classes is None and stated.config.report_std is not None:
            remedy = "it counts right labels: say how many classes there are"
            raise ConfigError(field="classes", value=None, remedy=remedy)
        return stated

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
            "parties": list(self.plans),
            "plans": list(map(dict, self.plans.values())),
            "rounds": self.rounds,
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
        settings = form.get("settings")
        parties, plans, columns = (_listed(form, name) for name in ("parties", "plans", "columns"))
        if not isinstance(settings, Mapping) or not all(isinstance(plan, Mapping) for plan in plans):
            raise ConfigError(field="offer", value=FORMAT, remedy=_NOT_WHOLE)
        if len(set(map(str, parties))) != len(parties) or len(parties) != len(plans):
            raise ConfigError(field="parties", value=parties, remedy="give each silo a plan and a name of its own")
        return cls(
            plans=dict(zip(map(str, parties), plans, strict=True)),
            rounds=form.get("rounds", 0),
            size=form.get("size", 0),
            columns=tuple(map(str, columns)),
            classes=form.get("classes"),
            settings=dict(settings),
        )

    def to_bytes(self, key: Ed25519PrivateKey, *, kind: OfferKind = "offer") -> bytes:
        """The frame, signed by the server: see `Offer.to_bytes`."""
        place = Place(plan=self.fingerprint, round=0, party="")
        return sealed(kind, place, {"offer": self.to_json()}, b"", key=key)


def _listed(form: Mapping[str, Any], name: str) -> list[Any]:
    found = form.get(name)
    if not isinstance(found, list):
        raise ConfigError(field="offer", value=FORMAT, remedy=_NOT_WHOLE)
    return found
