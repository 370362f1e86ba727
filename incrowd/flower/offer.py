"""What a server offers to learn: the plan, what is learnt from, and how clients train. Public, and signed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd import _validate
from incrowd.errors import ConfigError, DataError
from incrowd.flower.wire import Place, sealed, unsealed
from incrowd.learning.scoring import Scoring
from incrowd.privacy.mechanism.clipping import Clip, MedianClip
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan

FORMAT = "incrowd offer 1"

OfferKind = Literal["offer", "trial"]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A plan with the size of a contribution, the columns that are learnt from, and the settings of model and training.

    A contribution has a number for each weight. Where the settings have a section `evaluate`, it is a score: then the
    section says what is measured, and of how many weights (see `incrowd.flower.evaluation`). Real `parties` are named
    in the order of their numbers as clients; simulated ones have no names.

    Guarantee: who reads it has recomputed the plan's price: one with less noise than its budget needs cannot be read.
    Two offers with the same fingerprint are the same.

    Edge cases: what is not whole, or of another version, is a `ConfigError`.
    """

    plan: Plan
    size: int
    columns: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    parties: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _validate.count(size=self.size, weights=self.weights)
        clients = self.plan.round(0).sampler.clients
        if self.parties and (len(self.parties) != clients or len(set(self.parties)) != clients):
            remedy = f"name each of the plan's {clients} clients, each by a name of its own"
            raise ConfigError(field="parties", value=self.parties, remedy=remedy)
        if self.scoring is not None and self.scoring.size != self.size:
            remedy = f"what is measured has {self.scoring.size} numbers"
            raise ConfigError(field="size", value=self.size, remedy=remedy)

    @cached_property
    def scoring(self) -> Scoring | None:
        """What is measured, where nothing is trained."""
        found = self.settings.get("evaluate")
        if found is not None and not isinstance(found, Mapping):
            raise ConfigError(field="evaluate", value=found, remedy="give a table of what is measured")
        return None if found is None else Scoring.from_json(found)

    @property
    def weights(self) -> int:
        """How many numbers a request has."""
        if self.scoring is None:
            return self.size
        found: int = self.settings["evaluate"].get("weights")
        _validate.count(weights=found)
        return found

    @property
    def clip(self) -> Clip | MedianClip:
        """The clip of the first round."""
        return self.plan.config.clip

    @property
    def model(self) -> str:
        """The kind of model, by the name that the settings have for it."""
        found = self.settings.get("model", {})
        return str(found.get("kind", "")) if isinstance(found, Mapping) else ""

    @cached_property
    def fingerprint(self) -> str:
        """What tells it from every other offer."""
        return forms.fingerprint(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "format": FORMAT,
            "plan": forms.to_json(self.plan),
            "size": self.size,
            "columns": list(self.columns),
            "parties": list(self.parties),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> "Offer":
        """What `to_json` wrote."""
        plan, settings = form.get("plan"), form.get("settings")
        columns, parties = form.get("columns"), form.get("parties")
        if form.get("format") != FORMAT or not isinstance(plan, Mapping):
            raise ConfigError(field="format", value=form.get("format"), remedy=f"this incrowd reads {FORMAT!r}")
        if not (isinstance(columns, list) and isinstance(parties, list) and isinstance(settings, Mapping)):
            raise ConfigError(field="offer", value=FORMAT, remedy="it is not whole: have it sent again")
        stated = forms.from_json(plan)
        if not isinstance(stated, Plan):
            raise ConfigError(field="plan", value=plan.get("format"), remedy="offer a plan for whole clients")
        return cls(
            plan=stated,
            size=form.get("size", 0),
            columns=tuple(map(str, columns)),
            settings=dict(settings),
            parties=tuple(map(str, parties)),
        )

    def to_bytes(self, key: Ed25519PrivateKey, *, kind: OfferKind = "offer") -> bytes:
        """The frame, signed by the server; a "trial" is tried out on made-up records, and not taken up."""
        place = Place(plan=self.fingerprint, round=0, party="")
        return sealed(kind, place, {"offer": self.to_json()}, b"", key=key)

    @classmethod
    def read(cls, data: object, *, key: Ed25519PublicKey, kind: OfferKind = "offer") -> "Offer":
        """What a frame offers. Edge cases: as `Offered.read` and `Offered.made`."""
        return Offered.read(data, key=key, kind=kind).made(cls.from_json)


class Fingerprinted(Protocol):
    """What has something that tells it from every other."""

    @property
    def fingerprint(self) -> str:
        """What tells it from every other."""
        ...


AnyOffer = TypeVar("AnyOffer", bound=Fingerprinted)


@dataclass(frozen=True, kw_only=True)
class Offered:
    """What a server has signed as an offer of any kind under a fingerprint, and nobody has looked into yet."""

    plan: str
    form: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, data: object, *, key: Ed25519PublicKey, kind: OfferKind = "offer") -> "Offered":
        """What a frame says. Edge cases: one that the server has not signed, or is not whole: `DataError`."""
        place, head, _ = unsealed(data, kind=kind, key=key, most=0)
        form = head.get("offer")
        if not isinstance(form, dict):
            raise DataError("an offer that offers nothing")
        return cls(plan=place.plan, form=form)

    def made(self, make: Callable[[Mapping[str, Any]], AnyOffer]) -> AnyOffer:
        """The offer that this makes of what was signed; a plan's price is recomputed.

        Edge cases: what makes no offer, or less noise than it says: `ConfigError`; another fingerprint: `DataError`.
        """
        try:
            offer = make(self.form)
            fingerprint = offer.fingerprint
        except (ArithmeticError, RecursionError) as error:
            remedy = "give numbers that a plan can have"
            raise ConfigError(field="offer", value=type(error).__name__, remedy=remedy) from error
        if fingerprint != self.plan:
            raise DataError("an offer whose fingerprint is another one than it says")
        return offer
