"""What the owner of a party's data states: `party.toml`. What the data are, and what any server may ask of them."""

import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.data import Columns
from incrowd.errors import ConfigError
from incrowd.flower.policy import PartyPolicy
from incrowd.privacy.account.accounting import Budget
from incrowd.runs.data_config import Meaning
from incrowd.settings import Every, Section, Words, explained

PARTY_FILE = "party.toml"
_ANY_NUMBER = ("squared", "absolute", "huber")
"""Losses that take every number for a label: which of the others fit tells something about the labels."""


class OwnSection(Meaning):
    """A party's own data: a table, all of whose rows are its own, or what a `function` of its own returns: features and
    labels, which mean ``features * scale + offset``.
    """

    file: str | None = None
    function: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    folder: str | None = None
    scale: float = 1.0
    offset: float = 0.0

    def model_post_init(self, context: Any, /) -> None:
        """A table or a function, and of a table what its columns hold."""
        if (self.file is None) == (self.function is None):
            raise ConfigError(field="data.file", value=self.file, remedy="name a file, or a function: one of the two")
        if self.file is not None:
            if not self.label or not self.columns:
                remedy = "state what the columns hold: parties are asked for columns that they have stated"
                raise ConfigError(field="data.columns", value=self.columns, remedy=remedy)
            self.check_meaning()


class Allowed(Section):
    """What any server may ask: see `PartyPolicy`. `models` are kinds of the settings; of `modules`, functions of one's
    own, "package:name", those that are named may be asked for. `fields` are all stated columns unless they are named.
    An offer may ask for features of at most `most_features` numbers an example: all rows here are kept as such.
    """

    epsilon: float
    delta: float
    daily_epsilon: float | None = None
    least_noise: float = 0.0
    fields: Words | None = None
    models: Words = ("linear", "mlp", "cnn")
    modules: Words = ()
    losses: Words = _ANY_NUMBER
    most_weights: Every = 10_000_000
    most_features: Every = 16_384
    most_rounds: Every = 10_000
    most_steps: Every = 32
    most_epochs: Every = 100
    evaluations: bool = True


class PartyFile(Section):
    """A party's file. With a `seed` its noise can be foreseen: a simulation, in which nobody is protected.

    With `unit` "client" the party as a whole is protected, by the server's noise or its own. With "record" it is a
    silo, which protects each of its `records`: a public number, which it never exceeds.
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
        """A seed and seeded randomness come together, or not at all."""
        if (self.randomness == "seeded") != (self.seed is not None):
            raise ConfigError(field="seed", value=self.seed, remedy='it goes with randomness = "seeded": a simulation')
        if (self.unit == "record") != (self.records is not None):
            remedy = 'it goes with unit = "record": a public number of records that this party never exceeds'
            raise ConfigError(field="records", value=self.records, remedy=remedy)

    @classmethod
    def read(cls, folder: Path) -> "PartyFile":
        """The file in a party's folder. Edge cases: what is wrong with it is a `ConfigError`."""
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
        """What any server may ask."""
        allow = self.allow
        fields = tuple(name for name in self.stated.features) if self.stated is not None else ()
        return PartyPolicy(
            budget=Budget(epsilon=allow.epsilon, delta=allow.delta),
            daily_epsilon=allow.daily_epsilon,
            least_noise=allow.least_noise,
            fields=None if self.stated is None else fields if allow.fields is None else allow.fields,
            models=(*allow.models, *(("module", "given") if allow.modules else ())),
            most_weights=allow.most_weights,
            most_rounds=allow.most_rounds,
            most_steps=allow.most_steps,
            most_epochs=allow.most_epochs,
            evaluations=allow.evaluations,
        )

    @property
    def stated(self) -> Columns | None:
        """What the columns of the party's table hold; None where its data are no table."""
        return None if self.data.file is None else self.data.meaning().resolved(())

    def random(self) -> Randomness:
        """Where the party's own noise comes from."""
        return SystemRandomness() if self.seed is None else SeededRandomness(seed=self.seed)
