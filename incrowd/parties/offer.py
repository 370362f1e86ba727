"""A server's offer to parties: the plans, the number of weights, the columns, and how to train. Public, and signed."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, PrivateAttr, ValidationError

from incrowd import _validate
from incrowd.errors import AccountingError, ConfigError, DataError, SpecificationRefused
from incrowd.learning.models import Model
from incrowd.learning.scoring import Scoring
from incrowd.parties.frames import Expected, Frame, Place, Request, opened, sealed
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, QuantileClip, ScalingClip
from incrowd.privacy.mechanism.grid import GaussianNoise, RecordTraining, largest_norm
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan, Unit
from incrowd.runs.config import CommonSections
from incrowd.runs.data_config import Parties
from incrowd.settings import Counts, Every, Section, Words, explained

FORMAT = "incrowd offer 3"

OfferKind = Literal["offer", "trial"]

LAST = {"kind": "statement"}
"""The question after the last round of silos with plans of their own, in place of a clip: their claims."""

ALL = ""
"""The name under which an offer holds the one plan of all its parties."""

_LARGEST, _LONGEST_LIST = 2.0**53, 10_000

_NUMBERS = "give numbers that a plan can have"

OF_THIS_MACHINE = {
    "data": {"enrolled", "folder", "test_file"},
    "model": {"folder"},
    "features": {"cache", "folder", "weights"},
}
"""The settings that name places on the server's machine; they stay there."""


class OfferedSections(CommonSections):
    """The sections of the settings that a party needs to build the model and its training."""

    data: Parties


class Offer(Section):
    """A plan for all parties, or a plan for each by name, as plain data, with the settings of the training.

    A contribution has a number for each weight. With a section `evaluate` in the settings it is a score: the section
    names the measurement and the number of weights. Real `parties` are named in the order of their numbers; simulated
    ones have no names. With `classes` labels are so many classes. `records` are the declared numbers of the parties
    whose records one plan protects, and a `roster` has the cards of parties that share noise.

    Guarantee: reading it prices nothing. Two offers with the same fingerprint are the same.
    """

    plans: dict[str, dict[str, Any]]
    rounds: Every
    size: Every
    columns: Words = ()
    settings: dict[str, Any] = Field(default_factory=dict)
    parties: Words = ()
    classes: Every | None = None
    records: Counts = ()
    roster: Annotated[tuple[dict[str, Any], ...], Field(strict=False)] = ()
    _priced: dict[str, Plan] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Refuse names without plans, plans without names, and a measurement of another size."""
        _validate.count(weights=self.weights, plans=len(self.plans))
        if len(set(self.parties)) != len(self.parties) or (not self.together and set(self.plans) != set(self.parties)):
            remedy = "give each party a plan and a name of its own"
            raise ConfigError(field="parties", value=self.parties, remedy=remedy)
        if self.scoring is not None and self.scoring.size != self.size:
            remedy = f"what is measured has {self.scoring.size} numbers"
            raise ConfigError(field="size", value=self.size, remedy=remedy)

    @classmethod
    def of_plan(cls, plan: Plan, **more: Any) -> "Offer":
        """An offer of one plan for all parties together."""
        found = cls(plans={ALL: forms.to_json(plan)}, rounds=plan.rounds, **more)
        found._priced[ALL] = plan
        return found

    @classmethod
    def of_plans(cls, plans: Mapping[str, Plan], *, rounds: int, **more: Any) -> "Offer":
        """An offer of a plan for each party, by its name."""
        stated = {name: forms.to_json(plan) for name, plan in plans.items()}
        found = cls(plans=stated, rounds=rounds, parties=tuple(plans), **more)
        found._priced.update(plans)
        return found

    @property
    def together(self) -> bool:
        """Whether one plan is for all parties together."""
        return set(self.plans) == {ALL}

    @property
    def plan(self) -> Plan:
        """The plan of all parties together: see `plan_of`."""
        return self.plan_of(ALL)

    def form_of(self, party: str) -> Mapping[str, Any]:
        """The plan of one of its parties, or of all, unpriced."""
        return self.plans[ALL if self.together else party]

    def declared(self, party: str, plan: Plan) -> int:
        """The number of records that its plan supposes a party to have at most; 0 where none is named."""
        if not self.together:
            return plan.config.members
        return dict(zip(self.parties, self.records, strict=False)).get(party, 0)

    def plan_of(self, party: str) -> Plan:
        """The plan of one of its parties, or of all; the first call prices it.

        Guarantee: a plan with less noise than its budget needs is refused.
        """
        name = ALL if self.together else party
        if name not in self._priced:
            self._priced[name] = self._checked(name)
        return self._priced[name]

    def _checked(self, name: str) -> Plan:
        try:
            plan = forms.from_json(self.plans[name])
        except (AccountingError, ArithmeticError, RecursionError) as error:
            raise ConfigError(field="plan", value=type(error).__name__, remedy=_NUMBERS) from error
        if not isinstance(plan, Plan) or ((plan.unit, plan.noise_by) == ("record", "party")) is self.together:
            remedy = "offer one plan for all parties, or one for the records of each"
            raise ConfigError(field="plan", value=self.plans[name].get("format"), remedy=remedy)
        if plan.rounds > self.rounds or (self.together and plan.rounds != self.rounds):
            remedy = f"there are {self.rounds} rounds: plan at most as many for each"
            raise ConfigError(field="rounds", value=plan.rounds, remedy=remedy)
        if plan.unit == "record" and self.scoring is not None:
            raise ConfigError(field="evaluate", value="record", remedy="records have no evaluation: leave it out")
        members, whom = plan.config.members, len(self.parties) if plan.unit == "client" else sum(self.records)
        if self.together and self.parties and whom != members:
            remedy = f"name each of the plan's {members} {plan.unit}s once, by its party"
            raise ConfigError(field="parties", value=self.parties, remedy=remedy)
        if self.together and plan.unit == "record" and len(self.records) != len(self.parties):
            raise ConfigError(field="records", value=self.records, remedy="give the declared number of each party")
        return plan

    @cached_property
    def scoring(self) -> Scoring | None:
        """The measurement of an evaluation; None for training."""
        found = self.settings.get("evaluate")
        if found is not None and not isinstance(found, Mapping):
            raise ConfigError(field="evaluate", value=found, remedy="give a table of what is measured")
        return None if found is None else Scoring.from_json(found)

    @property
    def weights(self) -> int:
        """The number of weights of a question."""
        if self.scoring is None:
            return self.size
        found: int = self.settings["evaluate"].get("weights")
        _validate.count(weights=found)
        return found

    @property
    def model(self) -> str:
        """The kind of model, by its name in the settings."""
        found = self.settings.get("model", {})
        return str(found.get("kind", "")) if isinstance(found, Mapping) else ""

    @cached_property
    def fingerprint(self) -> str:
        """The unique digest of the offer."""
        return forms.fingerprint(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The offer as plain JSON data."""
        form = {"format": FORMAT, **{name: getattr(self, name) for name in type(self).model_fields}}
        copied: dict[str, Any] = json.loads(json.dumps(form))
        return copied

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> "Offer":
        """Read a form of `to_json`."""
        if form.get("format") != FORMAT:
            raise ConfigError(field="format", value=form.get("format"), remedy=f"this incrowd reads {FORMAT!r}")
        return cls(**{name: value for name, value in form.items() if name != "format"})

    def to_bytes(self, key: Ed25519PrivateKey, *, kind: OfferKind = "offer") -> bytes:
        """The frame, signed by the server; a party tries a "trial" on synthetic records, and does not accept it."""
        return sealed(kind, Place(plan=self.fingerprint), {"offer": self.to_json()}, b"", key=key)

    @classmethod
    def read(cls, data: object, *, key: Ed25519PublicKey) -> "Offer":
        """The offer in a frame."""
        return cls.of(opened(data, ("offer",), key=key, most=0))

    @classmethod
    def of(cls, frame: Frame) -> "Offer":
        """The offer in a frame that was opened."""
        form = frame.head.get("offer")
        if not isinstance(form, dict) or frame.body:
            raise DataError("an offer that offers nothing, or more than an offer is")
        _check_numbers([form.get(name) for name in ("plans", "size", "rounds", "classes", "records")])
        try:
            offer = cls.from_json(form)
            found = offer.fingerprint
        except ConfigError:
            raise
        except (ArithmeticError, RecursionError, ValueError) as error:  # canonical JSON has no NaN
            raise ConfigError(field="offer", value=type(error).__name__, remedy=_NUMBERS) from error
        if found != frame.place.plan:
            raise DataError("an offer whose fingerprint is another one than it says")
        return offer


def _check_numbers(plans: object) -> None:
    """Refuse plans with numbers beyond 2^53 or not finite, or with lists of more than 10,000 entries, however deep."""
    left: list[Any] = [plans]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list):
            if len(value) > _LONGEST_LIST:
                raise SpecificationRefused(f"a plan with a list of {len(value)} entries: {_LONGEST_LIST} are the most")
            left += value
        elif isinstance(value, int | float) and not abs(value) <= _LARGEST:
            raise SpecificationRefused("a plan with numbers that no plan has: beyond 2^53, or not finite")


@contextmanager
def in_words_of_the_server(begin: str = "") -> Iterator[None]:
    """Turn an error in an offer into a refusal for its server, without facts about the party."""
    try:
        yield
    except ConfigError as error:
        raise SpecificationRefused(f"{begin}{error}") from error


def sections_of(offer: Offer, unit: Unit) -> OfferedSections:
    """The settings in an offer."""
    for section, names in OF_THIS_MACHINE.items():
        given = offer.settings.get(section)
        if isinstance(given, Mapping) and any(given.get(name) is not None for name in names):
            raise SpecificationRefused(f"the offer names files of this machine in [{section}]")
    found = {name: offer.settings[name] for name in ("data", "features", "model", "local") if name in offer.settings}
    data = found.get("data")
    # Parties need no path of the server's.
    found["data"] = {**data, "enrolled": "-"} if isinstance(data, Mapping) else data
    try:
        sections = OfferedSections.model_validate_json(json.dumps(found))
    except ValidationError as error:
        raise explained(error, OfferedSections) from error
    sections.check_unit(unit)
    return sections


def module_of(model: Model) -> dict[str, str]:
    """A description that distinguishes modules: torch's text, and the digest of the frozen part."""
    trained, digest = set(model.layout.names), hashlib.sha256()
    for name, value in model.module.state_dict().items():
        if name not in trained:
            digest.update(f"{name} {tuple(value.shape)} {value.dtype} ".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return {"form": " ".join(repr(model.module).split()), "frozen": digest.hexdigest()}


@dataclass(frozen=True, kw_only=True)
class RoundTask:
    """A round of an offer as nodes see it: its clip, and the step and the length of what they send."""

    offer: Offer
    round: int
    clip: Clip

    @classmethod
    def of(cls, offer: Offer, request: Request) -> "RoundTask":
        """The task of a request. Edge cases: refuses another clip than the plan's, which the plan has not priced."""
        clip, told = offer.plan.config.clip, request.clip
        if isinstance(clip, QuantileClip):  # its bound moves, and nothing else of it
            clip = replace(clip, clip_norm=told.get("clip_norm", math.nan))
        task = cls.stated(offer, request.place.round, clip)
        if told != task.form:
            raise ConfigError(field="clip", value=told.get("kind"), remedy=f"the plan's is {clip}")
        return task

    @classmethod
    def stated(cls, offer: Offer, number: int, clip: Clip | MedianClip | None) -> "RoundTask":
        """A round with this clip. Edge cases: a median is refused: its norms are nowhere together."""
        offer.plan.round(number)
        if clip is None or isinstance(clip, MedianClip):
            remedy = "the norms of a cohort are not known where clients train elsewhere: use another clip"
            raise ConfigError(field="clip", value=type(clip).__name__, remedy=remedy)
        return cls(offer=offer, round=number, clip=clip)

    @property
    def form(self) -> dict[str, Any]:
        """The clip as a question states it."""
        told = forms.RoundForm(plan=self.offer.fingerprint, round=self.round, clip=self.clip)
        form: dict[str, Any] = forms.to_json(told)["clip"]
        return form

    @property
    def plan(self) -> Plan:
        """The one plan of all parties."""
        return self.offer.plan

    @property
    def noise(self) -> GaussianNoise | None:
        """The noise that each client adds for itself, where noise is local."""
        return self.plan.party_noise(self.round, self.clip)

    @property
    def training(self) -> RecordTraining | None:
        """The step over records; None where clients contribute."""
        return self.plan.training(self.offer.size) if self.plan.unit == "record" else None

    @property
    def members(self) -> int:
        """The public number of clients or records."""
        return self.plan.config.members

    @property
    def step(self) -> float:
        """The step of the grid of a part: public, so it is not sent along."""
        if self.noise is not None:
            return self.noise.step(self.offer.size, contributions_bound=1)
        if self.training is not None:
            return self.training.grid_step(self.offer.size)
        if isinstance(self.clip, ScalingClip) and self.plan.noise_by == "server":
            return grid.coarse_step(self.clip.clip_norm)
        return grid.contribution_step(self.clip.clip_norm, contributions_bound=self.members)

    def expected(self, place: Place, *, contributions: int) -> Expected:
        """The largest right answer to a request for so many contributions."""
        bound = self.clip.clip_norm if self.training is None else self.training.sensitivity
        if self.noise is not None:  # noise of d numbers is longer than sqrt(d) + t deviations once in e^(t^2 / 2) times
            bound *= 2 + 1.01 * self.noise.noise_multiplier * (math.sqrt(self.offer.size) + grid.REACH)
        largest = largest_norm(bound, contributions_bound=contributions) / self.step
        return Expected(place=place, size=self.offer.size, contributions=contributions, largest=largest)
