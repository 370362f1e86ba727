"""The folder of a party: its keys, its owner's file, its own data, and the training on them for an offer."""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from incrowd import _files
from incrowd._private import make_ours, read_ours
from incrowd.data.clients import Clients
from incrowd.data.columns import Columns, Header, agreed, read_header, relative
from incrowd.data.examples import Examples, from_arrays, single
from incrowd.data.partition import Partition
from incrowd.data.reading import read_once
from incrowd.data.tables import read_table
from incrowd.errors import ConfigError, DataError, SpecificationRefused
from incrowd.learning.dpsgd.engine import BatchedRecords, Records
from incrowd.learning.engine import CohortEngine
from incrowd.learning.execution import Execution
from incrowd.learning.features.transform import transform, transform_federated
from incrowd.learning.inputs import ClientTensors
from incrowd.learning.losses import LOSSES, Loss
from incrowd.learning.models import Model
from incrowd.learning.trial import tried_for_classes
from incrowd.parties.contribution import OwnRecords, alone
from incrowd.parties.guard import LEDGER, Identity
from incrowd.parties.keys import INVITATION, Enrolment, Invitation, answer_key, new_party
from incrowd.parties.offer import Offer, OfferedSections, in_words_of_the_server, module_of, sections_of
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PARTY_FILE, PartyFile
from incrowd.parties.roster import Roster
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.sampling import check_declared
from incrowd.runs.build import feature_map_for, loss_of, model_of
from incrowd.runs.config import FunctionModel, GivenModel, MlpSection
from incrowd.runs.data_config import MapFeatures, ModuleFeatures
from incrowd.runs.sources import call, section
from incrowd.settings import LOCAL_ALGORITHMS, Descent


@dataclass(frozen=True, eq=False)
class OwnExamples:
    """A party's data as its owner stated them, and the training on them.

    Guarantee: it accepts or refuses an offer by the statement alone, so the answer reveals nothing about a row.
    """

    file: PartyFile

    def check(self) -> int:
        """Read all rows once, and check them against the statement; return their number."""
        own = self._own(self.file.stated)
        if own.classes is None:
            labels = torch.as_tensor(own.labels)
            for loss in (LOSSES[name] for name in self.file.allow.losses if name in LOSSES):
                if not loss.fits(labels, tuple(labels.shape[1:]) or (1,)):
                    why = "who offers it would learn that from yes and no"
                    raise DataError(
                        f"not every label fits the loss {loss.name!r} in allow.losses ({why}): leave it out"
                    )
        rows = len(own)
        if self.file.records is not None:
            check_declared(self.file.records, held=rows, field="records", what="the rows of this party")
        return rows

    def learn(self, offer: Offer) -> CohortEngine | OwnRecords:
        """Build the training for an offer: see `incrowd.parties.participant.Learner`."""
        with in_words_of_the_server():
            return self._learnt(offer, sections_of(offer, self.file.unit))

    def _learnt(self, offer: Offer, sections: OfferedSections) -> CohortEngine | OwnRecords:
        file, local = self.file, sections.local
        self._check(sections)
        columns = None if sections.data.shape else sections.data.meaning().resolved(())
        if offer.columns != (() if columns is None else columns.features):
            raise SpecificationRefused("the offer names other columns than it uses")
        examples = self._examples(sections, columns)
        all_of_them = Partition.of([np.arange(len(examples))])
        seen = self._featured(
            sections, Clients(examples=examples, partition=all_of_them, name=file.name, table=columns)
        )
        examples, loss = seen.examples, loss_of(local.loss, seen.examples)
        _check_size(sections, examples, offer)
        model = self._model(sections, examples, loss)
        if offer.settings.get("module") != module_of(model):
            raise SpecificationRefused("the module here is another one than the server's, or its frozen part is")
        _check_labels(examples, model, loss)
        tensors = ClientTensors.of(seen)
        if file.records is None:
            own = alone(tensors, number=offer.parties.index(file.name), clients=len(offer.parties))
            return CohortEngine(model, own, local, Execution(threads=file.threads), loss=loss)
        config = offer.plan_of(file.name).config
        execution = Execution(contributions=config.schedule.communications * config.steps)
        descent = Descent() if offer.together else local  # a step of a server's has no other
        return OwnRecords(
            engine=BatchedRecords(model, Records.of(tensors, 0), descent, loss=loss, execution=execution),
            stated=file.records,
            classes=examples.classes,
            threads=file.threads,
            physical_batch=local.physical_batch,
        )

    def _check(self, sections: OfferedSections) -> None:
        """Check an offer by the statement alone."""
        allow, model, local = self.file.allow, sections.model, sections.local
        if local.algorithm not in (*LOCAL_ALGORITHMS, *allow.algorithms):
            raise SpecificationRefused(f"{local.algorithm} is not among the algorithms that this party allows")
        if isinstance(model, FunctionModel) and model.module not in allow.modules:
            raise SpecificationRefused(f"{model.module} is not among the modules that this party allows")
        if isinstance(model, GivenModel) and len(allow.modules) != 1:
            raise SpecificationRefused("this party has not said which of its modules the given model is")
        if isinstance(sections.features, MapFeatures | ModuleFeatures):
            raise SpecificationRefused("features of a module: no server may name code that a party runs")
        if sections.data.classes is None and local.loss is not None and local.loss not in allow.losses:
            raise SpecificationRefused(f"the loss {local.loss!r} is not among those that this party allows for numbers")

    def _featured(self, sections: OfferedSections, own: Clients) -> Clients:
        """The examples as the model sees them; a synthetic one shows first whether they exceed this party's limit."""
        examples = own.examples
        with section("features"):
            feature_map = feature_map_for(sections, examples, own.table)
            if feature_map is None:
                return own
            form = single(examples.features)
            blank = replace(examples, features=np.zeros((1, *form.shape[1:]), form.dtype), labels=examples.labels[:1])
            numbers = transform(feature_map, blank).shape[0]
            if numbers > self.file.allow.most_features:
                most = f"{self.file.allow.most_features} (most_features)"
                raise SpecificationRefused(f"features of {numbers} numbers are more than this party allows, {most}")
            return transform_federated(feature_map, own)

    def _examples(self, sections: OfferedSections, columns: Columns | None) -> Examples:
        stated, data, wanted = self.file.stated, self.file.data, sections.data
        if (columns is None) != (stated is None):
            what = "arrays" if stated is None else "a table"
            raise SpecificationRefused(f"this party has {what}, and the offer is for something else")
        if columns is not None and stated is not None:
            return self._own(agreed(columns, stated))
        found, meant = self._own(None), (data.classes, data.scale, data.offset)
        forms = [(shape, kind) for _, shape, kind in found.form]
        if forms != [(wanted.shape, wanted.type)] or meant != (wanted.classes, wanted.scale, wanted.offset):
            raise SpecificationRefused(f"this party has examples {forms}, of {data.classes} classes")
        return found

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

    def _model(self, sections: OfferedSections, examples: Examples, loss: Loss) -> Model:
        """The model of an offer, built here: an own function comes from this machine's folder."""
        own = sections.model
        if isinstance(own, GivenModel):
            own = FunctionModel(module=self.file.allow.modules[0])
        if isinstance(own, FunctionModel):
            sections = sections.replaced(model=own.replaced(folder=self.file.data.folder))
        return model_of(sections, examples, loss)


def _check_size(sections: OfferedSections, examples: Examples, offer: Offer) -> None:
    """Refuse hidden layers of more weights than the offer declares, before they take memory."""
    if isinstance(sections.model, MlpSection):
        widths = math.prod(examples.shape), *sections.model.hidden
        if sum(one * other for one, other in pairwise(widths)) > offer.weights:
            raise SpecificationRefused(f"the model that the offer describes has more than its {offer.weights} weights")


def _check_labels(examples: Examples, model: Model, loss: Loss) -> None:
    """Refuse a model or a loss unless it fits every stated class: otherwise refusals reveal the classes of the rows."""
    if examples.classes is None:  # by what is stated, too: see `Allowed.losses`
        return
    try:
        tried_for_classes(model, *examples.as_tensors(), examples.classes, loss)
    except (ConfigError, DataError) as error:
        raise SpecificationRefused(f"not every class that this party has stated can be learned: {error}") from error


ROSTER = "roster.json"
"""The roster that the party's owner has compared with the others."""

LEFT = "left"
"""A file that says that a party takes part in nothing any more."""


@dataclass(frozen=True, kw_only=True)
class PartyFolder:
    """The folder of a party: its keys, its owner's file, and the invitation of its server."""

    folder: Path
    file: PartyFile
    invitation: Invitation
    roster: Roster | None = None

    @classmethod
    def read(cls, folder: Path) -> "PartyFolder":
        """Read the files of a party."""
        file = PartyFile.read(folder)
        if (folder / LEFT).exists():
            remedy = "this party has left for good; a new one has keys, and an allowance, of its own"
            raise ConfigError(field="folder", value=str(folder), remedy=remedy)
        path = folder / ROSTER
        roster = Roster.from_json(json.loads(read_ours(path))) if path.exists() else None
        return cls(folder=folder, file=file, invitation=Invitation.read(folder / INVITATION), roster=roster)

    @property
    def identity(self) -> Identity:
        """The party's name and key, and the key of its server."""
        return Identity(name=self.file.name, key=answer_key(self.folder), server=self.invitation.verifier)

    def check(self) -> int:
        """Read the party's own data as they are stated; the number of rows, which is for its owner alone."""
        return OwnExamples(self.file).check()

    def open(self) -> Participant:
        """The participant that answers in the party's name."""
        return Participant(
            self.folder,
            identity=self.identity,
            policy=self.file.policy(),
            unit=self.file.unit,
            learner=OwnExamples(self.file).learn,
            roster=self.roster,
            randomness=self.file.random(),
        )

    @contextmanager
    def attending(self) -> Iterator[Participant]:
        """The participant, as the only process of this party."""
        with attending(self.folder), read_once():
            party = self.open()
            try:
                self.check()
                party.guard.check_ledger()
                yield party
            finally:
                party.close()

    def compared(self, roster: Roster) -> None:
        """Take this roster, whose fingerprint the owner has compared with the other owners."""
        own = answer_key(self.folder).public_key().public_bytes_raw().hex()
        if own not in {card.key for card in roster.cards if card.name == self.file.name}:
            remedy = (
                f"it has no {self.file.name}, or another key for it: get the enrolments from the parties themselves"
            )
            raise ConfigError(field="roster", value=list(roster.names), remedy=remedy)
        _files.write(self.folder / ROSTER, json.dumps(roster.to_json(), indent=1) + "\n")

    def leave(self) -> None:
        """Take part in nothing any more, and give back what was reserved and will not be spent."""
        with attending(self.folder):
            _files.write(self.folder / LEFT, "")
            book = self.folder / LEDGER
            if book.exists():
                with Ledger.open(book) as ledger:
                    for each in ledger.reservations():
                        ledger.release_reservation(each.label)


@contextmanager
def attending(folder: Path) -> Iterator[None]:
    """Be the only process for a party."""
    make_ours(folder)
    lock = _files.take(folder / "lock", wait=False)
    if lock is None:
        remedy = "another process attends for this party: stop it first"
        raise ConfigError(field="folder", value=str(folder), remedy=remedy)
    try:
        yield
    finally:
        os.close(lock)


def new_folder(folder: Path, name: str, invitation: Path, *, table: Path | None = None) -> Enrolment:
    """Make a party's folder: its keys, its enrolment NAME.pub for the server, and a `party.toml` to fill in.

    Guarantee: reads the header of a table alone. An existing `party.toml` or ledger stays.
    """
    invited = Invitation.read(invitation)
    header = None if table is None else read_header(table)
    enrolment = new_party(folder, name)
    _files.write(folder / INVITATION, invited.to_text())
    seen = "?" if table is None else relative(table, to=folder)
    if not (folder / PARTY_FILE).exists():
        _files.write(folder / PARTY_FILE, _template(name, header, seen=seen))
    return enrolment


def _template(name: str, header: Header | None, *, seen: str) -> str:
    columns = [] if header is None else [f'"{column}" = "?"' for column in header.columns]
    delimiter = "," if header is None else header.delimiter
    return _TEMPLATE.format(name=name, file=seen, delimiter=delimiter, columns="\n".join(columns) or '# age = "?"')


_TEMPLATE = """\
# What {name} states: of its data, and of what any server may ask. It stays here.
# Fill in every ? and every number that is missing. State what everybody may know (a codebook, a form, the medical
# literature), never what you see in the rows: servers are told what does not fit.
name = "{name}"
# unit = "record"              # protect each row, not the party as a whole; then state a number of rows, rounded up:
# records = 5000

[data]
file = "{file}"                # seen from this folder; all of its rows are this party's
delimiter = "{delimiter}"
label = "?"                    # the column to learn; delete its line below
classes = ["?"]                # the labels in order, say ["no", "yes"]; without this line they are numbers

# What each column holds: {{range = [0, 120]}}, {{kind = "whole number", range = [0, 20]}}, {{levels = ["f", "m"]}},
# {{dates = ["2015-01-01", "2025-12-31"]}}, "yes/no", "ignore"; with missing = ... where a value may be missing.
[data.columns]
{columns}

# What any server may ask, all together and for all time. A round that would break it is refused.
[allow]
epsilon = 0.0                  # say 3.0
delta = 0.0                    # say 1e-5
# daily_epsilon = 1.0
# fields = ["age"]             # the columns that a model may use; all that are stated
# models = ["linear"]          # of linear, mlp, cnn
# least_noise = 1.0            # a noise multiplier
# evaluations = false          # models are not scored on this party's rows; with true that costs as a round does
"""
