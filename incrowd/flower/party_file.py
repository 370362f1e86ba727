"""What the owner of a party's data states: `party.toml`. What the data are, and what any server may ask of them."""

import math
import tomllib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.data import Clients, Columns, Examples, Partition, from_arrays, read_table
from incrowd.data.agreement import agreed
from incrowd.errors import ConfigError, SpecificationRefused
from incrowd.flower.offer import Offer
from incrowd.flower.offered import OfferedSections, columns_of, module_of, own_function, sections_of
from incrowd.flower.party import alone
from incrowd.flower.policy import PartyPolicy
from incrowd.learning import ClientTensors, CohortEngine, Execution, Loss, Model
from incrowd.privacy.account.accounting import Budget
from incrowd.runs.build import featured, loss_of, model_of
from incrowd.runs.config import FunctionModel, GivenModel, MlpSection
from incrowd.runs.data_config import Meaning
from incrowd.runs.functions import call
from incrowd.settings.explained import explained
from incrowd.settings.section import Every, Section, Words

PARTY_FILE = "party.toml"
_ANY_NUMBER = ("squared", "absolute", "huber")
"""Losses that take every number for a label: which of the others fit tells something about the labels."""


class Own(Meaning):
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
    most_rounds: Every = 10_000
    most_steps: Every = 32
    most_epochs: Every = 100


class PartyFile(Section):
    """A party's file. With a `seed` its noise can be foreseen: a simulation, in which nobody is protected."""

    name: str
    seed: int | None = None
    randomness: Literal["system", "seeded"] = "system"
    threads: Every = 1
    data: Own
    allow: Allowed

    def model_post_init(self, context: Any, /) -> None:
        """A seed and seeded randomness come together, or not at all."""
        if (self.randomness == "seeded") != (self.seed is not None):
            raise ConfigError(field="seed", value=self.seed, remedy='it goes with randomness = "seeded": a simulation')

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
        )

    @property
    def stated(self) -> Columns | None:
        """What the columns of the party's table hold; None where its data are no table."""
        return None if self.data.file is None else self.data.meaning().resolved(())

    def random(self) -> Randomness:
        """Where the party's own noise comes from."""
        return SystemRandomness() if self.seed is None else SeededRandomness(seed=self.seed)


@dataclass(frozen=True, eq=False)
class OwnExamples:
    """A party's data as it has stated them, and what trains on them.

    Guarantee: what is refused is refused by what is stated, of the data and of an offer: whoever offers learns nothing
    of a row from a yes or a no.

    Edge cases: rows that are not as stated are a `DataError` that names line and column, before any offer is looked at.
    """

    file: PartyFile

    def check(self) -> int:
        """Read everything once, as it is stated; the number of rows."""
        return len(self._own(self.file.stated))

    def engine(self, offer: Offer) -> CohortEngine:
        """What trains for an offer: see `incrowd.flower.party.Learner`."""
        name, sections = self.file.name, self.sections(offer)
        columns = columns_of(sections)
        return self._engine(self._examples(sections, columns), sections, offer, number=offer.parties.index(name))

    def sections(self, offer: Offer) -> OfferedSections:
        """What an offer says, as this party may take it."""
        found = own_function(sections_of(offer), self.file.data.folder)
        self._check(found)
        columns = columns_of(found)
        if offer.columns != (() if columns is None else columns.features):
            raise SpecificationRefused("the offer names other columns than it uses")
        return found

    def _check(self, sections: OfferedSections) -> None:
        """By what is stated alone."""
        allow, model, loss = self.file.allow, sections.model, sections.local.loss
        if isinstance(model, FunctionModel) and model.module not in allow.modules:
            raise SpecificationRefused(f"{model.module} is not among the modules that this party allows")
        if isinstance(model, GivenModel) and len(allow.modules) != 1:
            raise SpecificationRefused("this party has not said which of its modules the given model is")
        numbers = sections.data.classes is None
        if numbers and loss is not None and loss not in allow.losses:
            raise SpecificationRefused(f"the loss {loss!r} is not among those that this party allows for numbers")

    def _examples(self, sections: OfferedSections, columns: Columns | None) -> Examples:
        stated = self.file.stated
        if (columns is None) != (stated is None):
            what = "arrays" if stated is None else "a table"
            raise SpecificationRefused(f"this party has {what}, and the offer is for something else")
        if columns is not None and stated is not None:
            return self._own(agreed(columns, stated))
        found, wanted = self._own(None), sections.data
        forms = [(shape, kind) for _, shape, kind in found.form]
        if forms != [(wanted.shape, wanted.type)] or self._meant() != (wanted.classes, wanted.scale, wanted.offset):
            raise SpecificationRefused(f"this party has examples {forms}, of {self._meant()[0]} classes")
        return found

    def _meant(self) -> tuple[Any, float, float]:
        return self.file.data.classes, self.file.data.scale, self.file.data.offset

    def _own(self, columns: Columns | None) -> Examples:
        data = self.file.data
        if columns is not None:
            examples, _ = read_table(Path(data.folder or ".") / str(data.file), columns)
            return examples
        found = call(str(data.function), data.arguments, folder=data.folder, field="data.function")
        if not isinstance(found, tuple) or len(found) != 2:
            remedy = "return a pair: features and labels"
            raise ConfigError(field="data.function", value=data.function, remedy=remedy)
        classes = data.classes if isinstance(data.classes, int) else None
        return from_arrays(*found, classes=classes, scale=data.scale, offset=data.offset)

    def _engine(self, examples: Examples, sections: OfferedSections, offer: Offer, *, number: int) -> CohortEngine:
        own = Clients(examples=examples, partition=Partition.of([np.arange(len(examples))]), name=self.file.name)
        seen = featured(sections, own)
        loss = loss_of(sections.local.loss, seen.examples)
        _check_size(sections, seen.examples, offer)
        model = self.model(sections, seen.examples, loss)
        if offer.settings.get("module") != module_of(model):
            raise SpecificationRefused("the module here is another one than the server's, or its frozen part is")
        tensors = alone(ClientTensors.of(seen), number=number, clients=len(offer.parties))
        return CohortEngine(model, tensors, sections.local, Execution(threads=self.file.threads), loss=loss)

    def model(self, sections: OfferedSections, examples: Examples, loss: Loss) -> Model:
        """The model that an offer describes, built here."""
        if isinstance(sections.model, GivenModel):
            (name,) = self.file.allow.modules
            sections = sections.replaced(model=FunctionModel(module=name, folder=self.file.data.folder))
        return model_of(sections, examples, loss)


def _check_size(sections: OfferedSections, examples: Examples, offer: Offer) -> None:
    """Refuse hidden layers of more weights than the offer says, before any memory is taken for them."""
    if isinstance(sections.model, MlpSection):
        widths = math.prod(examples.shape), *sections.model.hidden
        if sum(one * other for one, other in pairwise(widths)) > offer.size:
            raise SpecificationRefused(f"the model that the offer describes has more than its {offer.size} weights")
