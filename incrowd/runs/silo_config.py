"""What a run of silos is: the sections of a TOML file whose `privacy.unit` is "record".

The sections for data, features and model are those of any run (`incrowd.runs.config`); each client is a silo.
"""

from typing import Any, Literal

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.runs.clip_config import AnyClip, NormalisedSection
from incrowd.runs.config import BasicRunOptions, CommonSections
from incrowd.runs.data_config import Parties
from incrowd.settings.descent import Descent
from incrowd.settings.local import LossName
from incrowd.settings.section import Counts, Every, Numbers, Section


class LocalRecords(Descent):
    """What a silo does in a round: DP-SGD over its records.

    `batch_size` is the expected one (as many as are declared unless it is given); `physical_batch` is how many records
    are worked on at once, which changes nothing but memory and speed.
    """

    epochs: float = 1.0
    batch_size: float | None = None
    physical_batch: Every = 256
    loss: LossName | None = None


class ClientLevelSection(Section):
    """The second promise, about a silo as a whole: a budget of its own, kept by the server."""

    epsilon: float
    delta: float
    clip: AnyClip = NormalisedSection()


class PrivateRecords(Section):
    """The budget of each silo, and how it is used up over the rounds.

    With `noise_by` "party" each silo takes DP-SGD steps and noises them, on a budget of its own. With "server" a round
    is one step: each silo sends the clipped sum of a batch, in whole steps of a public grid, and the trusted server
    noises the total. Then one plan protects the records of all silos, and `local.batch_size` is the expected batch of
    all silos together.

    `records` is how many records a silo has, a public number that is declared and never counted: one for all silos, or
    one for each. Only where the data are public it may be left out: then it is what each has (see
    `incrowd.privacy.plan.sampling`).

    `epsilon` is one number for all silos, or one for each: what the rounds of this run may cost together. They have the
    least noise that it allows; with `noise_multiplier` there are as many rounds as it allows. A ledger that this run
    begins has so much `room` beside that, for later runs. `hardlimit` may be left out, because there is nothing else: a
    round that would break the budget is refused before it begins. `report_std` releases one noised table at the end, of
    how many records of each class the model calls which. `ledger` and `witness` are folders for the ledgers of the
    silos, and of the server, and for their witnesses: without them they are in the user's state folder, or, of public
    data, in the run's. `released_before` is as in `Private`.
    """

    unit: Literal["record"] = "record"
    noise_by: Literal["server", "party"] = "party"
    epsilon: float | Numbers
    delta: float
    rounds: int = 10
    records: Every | Counts | None = None
    noise_multiplier: float | None = None
    clip_norm: float = 1.0
    report_std: float | None = None
    hardlimit: bool = True
    room: float = 0.0
    weigh: Literal["equally", "by records"] = "equally"
    ledger: str | None = None
    witness: str | None = None
    released_before: bool = False
    clients: ClientLevelSection | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse what would have no meaning."""
        _validate.non_negative(**{"privacy.room": self.room})
        if not self.hardlimit:
            remedy = "leave it out: a round that would break the budget never begins; for more rounds raise epsilon"
            raise ConfigError(field="privacy.hardlimit", value=False, remedy=remedy)
        for name in ("noise_multiplier", "report_std", "weigh", "clients") if self.noise_by == "server" else ():
            if (value := getattr(self, name)) != type(self).model_fields[name].default:
                remedy = 'it goes with privacy.noise_by = "party": leave it out'
                raise ConfigError(field=f"privacy.{name}", value=value, remedy=remedy)
        if self.clients is not None and self.report_std is not None:
            remedy = "a silo that tells of itself is not hidden among others, as privacy.clients promises: leave it out"
            raise ConfigError(field="privacy.report_std", value=self.report_std, remedy=remedy)
        if self.clients is not None and self.weigh != "equally":
            remedy = "with a promise to clients, too, all silos weigh the same: leave it out"
            raise ConfigError(field="privacy.weigh", value=self.weigh, remedy=remedy)


class SiloRunOptions(BasicRunOptions):
    """How a run of silos is executed: each trains with so many `threads`."""

    threads: Every = 1


class SiloConfig(CommonSections):
    """A whole run of silos."""

    run: SiloRunOptions = SiloRunOptions()
    local: LocalRecords = LocalRecords()
    privacy: PrivateRecords

    def model_post_init(self, context: Any, /) -> None:
        """Refuse settings of steps that no silo takes."""
        server = self.privacy.noise_by == "server"
        if server and isinstance(self.data, Parties):
            remedy = 'parties over a network noise their own steps: use "party"'
            raise ConfigError(field="privacy.noise_by", value="server", remedy=remedy)
        for name in ("learning_rate", "momentum", "weight_decay", "epochs") if server else ():
            if (value := getattr(self.local, name)) != LocalRecords.model_fields[name].default:
                remedy = 'with privacy.noise_by = "server" the server takes the steps: set server.learning_rate'
                raise ConfigError(field=f"local.{name}", value=value, remedy=remedy)
