"""The owner's rules for every server, and the file `party.toml` that states them and the data."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from incrowd import _validate
from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.data.columns import Columns
from incrowd.errors import BudgetExceeded, ConfigError, SpecificationRefused
from incrowd.privacy.account.accounting import ACCOUNTANTS, Budget
from incrowd.privacy.mechanism.clipping import ThirdPartyClip
from incrowd.privacy.plan.plan import SAMPLING, Plan
from incrowd.runs.data_config import Meaning
from incrowd.settings import Every, Section, Words, explained

if TYPE_CHECKING:
    from incrowd.parties.offer import Offer

_LARGEST_SETTING, _MOST_LAYERS = 10_000, 100
_SAMPLERS, _ACCOUNTANTS = tuple(SAMPLING), tuple(ACCOUNTANTS)  # lists and tables are in no tuple of these, too
MOST_STEPS = 100_000
"""A bound on the steps of a silo in a round."""


class Limits(Section):
    """The numbers that an owner may set: see `PartyPolicy`."""

    daily_epsilon: float | None = None
    least_noise: float = 0.0
    least_colluders: Every = 1
    most_weights: Every = 10_000_000
    most_rounds: Every = 10_000
    most_steps: Every = 32
    most_epochs: Every = 100
    evaluations: bool = True

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that make no sense."""
        _validate.non_negative(least_noise=self.least_noise)
        if self.daily_epsilon is not None:
            _validate.positive(daily_epsilon=self.daily_epsilon)


class PartyPolicy(Limits):
    """The owner's rules for any server; no server sets them.

    `budget` is for all servers and all time, `daily_epsilon` for a day, at the budget's delta. An offer names columns
    of `fields` and a kind of `models`; the default allows all. `least_noise` is the smallest noise multiplier of a
    round, `least_colluders` the smallest number in a plan whose parties share the noise. Before pricing, a party
    refuses an offer of more than `most_weights`, `most_rounds`, `most_steps` kinds of rounds, or `most_epochs` passes
    over the examples. With `evaluations`, a server may score models on the party's examples, each for the price of a
    round.
    """

    budget: Budget
    fields: Words | None = None
    models: Words | None = None

    def look(self, offer: "Offer", party: str) -> None:
        """Refuse (`SpecificationRefused`) an offer that is larger than this policy allows, before it is priced.

        Guarantee: this takes no longer than reading the offer does.
        """
        form = offer.form_of(party)
        clip, accountants, schedule = _mapping(form.get("clip")), form.get("accountants"), form.get("schedule")
        ours = (
            clip.get("kind", ThirdPartyClip.__name__) != ThirdPartyClip.__name__ and form.get("sampling") in _SAMPLERS
        )
        if not ours or not isinstance(accountants, list) or not all(each in _ACCOUNTANTS for each in accountants):
            raise SpecificationRefused("a plan with code of other packages, which no server may name")
        kinds = schedule if isinstance(schedule, list) else [None]
        rounds = [_mapping(kind).get("rounds") for kind in kinds]
        if not all(isinstance(each, int) for each in rounds):
            raise SpecificationRefused("an offer that does not say how many rounds it has")
        for what, value, most in (
            ("weights", max(offer.size, offer.weights), self.most_weights),
            ("rounds", max(offer.rounds, sum(each or 0 for each in rounds)), self.most_rounds),
            ("kinds of rounds", len(kinds), self.most_steps),
            ("steps a round", form.get("steps"), MOST_STEPS),
            ("epochs", _epochs(offer.settings, form.get("unit")), self.most_epochs),
        ):
            if not isinstance(value, int) or value > most:
                raise SpecificationRefused(f"{value} {what} are more than this party allows, {most}")
        asked = _mapping(form.get("budget")).get("epsilon")
        if not isinstance(asked, int | float) or asked > self.budget.epsilon:
            raise BudgetExceeded(f"a plan for epsilon = {asked}: this party allows at most {self.budget.epsilon:g}")

    def check(self, offer: "Offer", plan: Plan) -> None:
        """Refuse (`SpecificationRefused`) an offer of this plan that the policy does not allow."""
        fields, delta = self.fields, plan.budget.delta
        noise, least = plan.noise_multiplier, self.least_noise
        others = [] if fields is None else [name for name in offer.columns if name not in fields]
        colluders = plan.config.sharing[1] if plan.noise_by == "parties" else self.least_colluders
        own_noise = (plan.unit, plan.noise_by) == ("record", "party")
        # as few as come to so many whole steps
        epochs = (plan.config.steps - 0.5) * plan.training().sampling_prob if own_noise else 0.0
        for wrong, why in (
            (fields is not None and not offer.columns, "an offer that does not say which fields its model uses"),
            (others, f"the field {next(iter(others), '')} is not one that this party lets models use"),
            (
                self.models is not None and offer.model not in self.models,
                f"a model of the kind {offer.model!r} is not one that this party trains",
            ),
            (
                offer.scoring is not None and not self.evaluations,
                "an evaluation, and this party lets no model be scored on its examples",
            ),
            (
                noise < least,
                f"a round with a noise multiplier of {noise:.6g} is less than this party asks for, {least:g}",
            ),
            (
                colluders < self.least_colluders,
                f"a plan against {colluders} colluding parties: this party asks for {self.least_colluders}",
            ),
            (epochs > self.most_epochs, f"{epochs:g} epochs are more than this party allows, {self.most_epochs}"),
            (
                own_noise and delta != self.budget.delta,
                f"a plan for delta = {delta:g}: this party allows at most {self.budget.epsilon:g} at "
                f"{self.budget.delta:g}",
            ),
        ):
            if wrong:
                raise SpecificationRefused(why)


def _epochs(settings: Mapping[str, Any], unit: object) -> int:
    """The passes of a client over its examples; refuses numbers that only cost memory or time."""
    local, model, features = (_mapping(settings.get(name)) for name in ("local", "model", "features"))
    epochs, hidden = local.get("epochs", 1) if unit == "client" else 1, model.get("hidden")  # records: see `check`
    numbers = [each for each in (local.get("batches"), *features.values()) if isinstance(each, int | float)]
    large = not all(abs(each) <= _LARGEST_SETTING for each in numbers)
    if large or not isinstance(epochs, int) or (isinstance(hidden, list) and len(hidden) > _MOST_LAYERS):
        raise SpecificationRefused("settings with numbers that no training has")
    return epochs


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


PARTY_FILE = "party.toml"
_ANY_NUMBER = ("squared", "absolute", "huber")
"""Losses that fit every number; whether another loss fits reveals something about the labels."""


class OwnSection(Meaning):
    """A party's own data: a table, or features and labels that a `function` of its own returns. Features mean
    ``features * scale + offset``.
    """

    file: str | None = None
    function: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    folder: str | None = None
    scale: float = 1.0
    offset: float = 0.0

    def model_post_init(self, context: Any, /) -> None:
        """A table, which needs its columns stated, or a function."""
        if (self.file is None) == (self.function is None):
            raise ConfigError(field="data.file", value=self.file, remedy="name a file, or a function: one of the two")
        if self.file is not None:
            if not self.label or not self.columns:
                remedy = "state what the columns hold: parties are asked for columns that they have stated"
                raise ConfigError(field="data.columns", value=self.columns, remedy=remedy)
            self.check_meaning()


class Allowed(Limits):
    """The rules of `PartyPolicy`, in the file.

    `models` are kinds of the settings. A server may name a function of `modules`, each "package:name", and an extension
    of `algorithms`. `fields` defaults to all stated columns. Features may have at most `most_features` numbers an
    example, because memory holds all rows as features.
    """

    epsilon: float
    delta: float
    fields: Words | None = None
    models: Words = ("linear", "mlp", "cnn")
    modules: Words = ()
    algorithms: Words = ()
    losses: Words = _ANY_NUMBER
    most_features: Every = 16_384


class PartyFile(Section):
    """A party's file. With a `seed` its noise is predictable: a simulation, which protects no data.

    With `unit` "client" the server's noise, or the party's, protects the party as a whole. With "record" it is a silo,
    which protects each of its `records`: a public number, which it never exceeds.
    """

    name: str
    unit: Literal["client", "record"] = "client"
    records: Every | None = None
    seed: int | None = None
    randomness: Literal["system", "seeded"] = "system"
    threads: Every = 1
    data: OwnSection
    allow: Allowed

    def model_post_init(self, context: Any, /) -> None:
        """A seed needs seeded randomness, and seeded randomness a seed."""
        if (self.randomness == "seeded") != (self.seed is not None):
            raise ConfigError(field="seed", value=self.seed, remedy='it goes with randomness = "seeded": a simulation')
        if (self.unit == "record") != (self.records is not None):
            remedy = 'it goes with unit = "record": a public number of records that this party never exceeds'
            raise ConfigError(field="records", value=self.records, remedy=remedy)

    @classmethod
    def read(cls, folder: Path) -> "PartyFile":
        """The file in a party's folder."""
        path = folder / PARTY_FILE
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            remedy = f"give the folder of a party, made by `incrowd party new` ({error.strerror})"
            raise ConfigError(field="folder", value=str(folder), remedy=remedy) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(field="party.toml", value=str(path), remedy=f"it is not TOML: {error}") from error
        try:
            found = cls.model_validate(content)
        except ValidationError as error:
            raise explained(error, cls) from error
        return found.replaced(data=found.data.replaced(folder=str(folder.resolve() / (found.data.folder or "."))))

    def policy(self) -> PartyPolicy:
        """The rules for any server."""
        allow, stated = self.allow, self.stated
        return PartyPolicy(
            budget=Budget(epsilon=allow.epsilon, delta=allow.delta),
            fields=None if stated is None else tuple(stated.features) if allow.fields is None else allow.fields,
            models=(*allow.models, *(("module", "given") if allow.modules else ())),
            **{name: getattr(allow, name) for name in Limits.model_fields},
        )

    @property
    def stated(self) -> Columns | None:
        """The stated columns of the party's table; None where its data are no table."""
        return None if self.data.file is None else self.data.meaning().resolved(())

    def random(self) -> Randomness:
        """The source of the party's own noise."""
        return SystemRandomness() if self.seed is None else SeededRandomness(seed=self.seed)
