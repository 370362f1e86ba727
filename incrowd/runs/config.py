"""The settings of a run: the sections of a TOML file, each a frozen object, inert.

Here are names, types and defaults. The code that uses a number checks it (a delta in
`incrowd.privacy.account.accounting`), once, before anything is written or spent; `incrowd.runs.data_config` has the
sections `data` and `features`, `incrowd.settings` those that learning reads. Paths in a file are relative to that file.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
)
from incrowd.privacy.plan.plan import NoiseBy
from incrowd.privacy.plan.third_party import ThirdPartyClip
from incrowd.runs.data_config import DataSection, DigitsData, FeaturesSection, NoFeatures, Parties
from incrowd.settings import (
    Compile,
    Counts,
    Descent,
    Every,
    Local,
    LossName,
    Numbers,
    Range,
    Section,
    ServerOptimizer,
    tagged,
)

TrackerName = Literal["csv", "jsonl", "tensorboard", "mlflow", "wandb"]
UNITS = ("client", "record")


class Weights(Section):
    """The start of every model of ours: fresh weights times `init_scale`."""

    init_scale: float = 1.0


class LinearSection(Weights):
    """Linear outputs: softmax, logistic or linear regression, as the loss has it. With a `label_range`, outputs of
    -1 to 1 are stretched onto that.
    """

    kind: Literal["linear"] = "linear"
    bias: bool = True
    label_range: Range | None = None


class MlpSection(Weights):
    """A perceptron with rectified hidden layers; (600, 100) is the paper's."""

    kind: Literal["mlp"] = "mlp"
    hidden: Counts = (200,)
    bias: bool = True


class CnnSection(Weights):
    """Two convolutions and a hidden layer, for square images of at least 16 x 16."""

    kind: Literal["cnn"] = "cnn"


class GivenModel(Section):
    """A module that a program hands over (`incrowd.Federation`); it starts with its own weights."""

    kind: Literal["given"] = "given"


class FunctionModel(Section):
    """A module of torch that a function of your own, `module` = "package:name", returns for these `arguments`; it
    starts with its own weights. The function is imported as in `FunctionData`.
    """

    kind: Literal["module"] = "module"
    module: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    folder: str | None = None


AnyModel = LinearSection | MlpSection | CnnSection | FunctionModel | GivenModel


class NormalisedSection(Section):
    """Every contribution has the same norm."""

    kind: Literal["normalised"] = "normalised"
    clip_norm: float = 1.0


class FixedSection(Section):
    """No contribution is longer than a constant."""

    kind: Literal["fixed"]
    clip_norm: float


class PerLayerSection(Section):
    """No layer of a contribution is longer than its own constant."""

    kind: Literal["per-layer"]
    clip_norms: Numbers


class ElementwiseSection(Section):
    """No number of a contribution is larger than a constant."""

    kind: Literal["elementwise"]
    limit: float


class QuantileSection(Section):
    """The bound follows a quantile of the norms, privately; the bit noise is a twentieth of the cohort by default."""

    kind: Literal["quantile"]
    clip_norm: float = 0.1
    bit_noise: float | None = None
    quantile: float = 0.5
    learning_rate: float = 0.2


class MedianSection(Section):
    """The paper's clip, which is NOT private; every statement of such a run notes that."""

    kind: Literal["median"]
    floor: float = 1e-12


class ThirdPartySection(Section):
    """A registered clip function of another package (`incrowd.types.ThirdPartyClip`), with its bound."""

    kind: Literal["third-party"]
    name: str
    clip_norm: float


_CLIPS: Mapping[str, type] = {
    "normalised": NormalisedClip,
    "fixed": FixedClip,
    "per-layer": PerLayerClip,
    "elementwise": ElementwiseClip,
    "quantile": QuantileClip,
    "median": MedianClip,
    "third-party": ThirdPartyClip,
}
_NOT_STATED = ("parts", "size", "private")
"""Parts of a clip that follow from the model, or from its kind."""


def _clip_section(value: Any) -> Any:
    """A clip as its section; pydantic judges other values."""
    for kind, clip in _CLIPS.items():
        if isinstance(value, clip):
            return {"kind": kind, **{name: item for name, item in vars(value).items() if name not in _NOT_STATED}}
    return value


_Sections = (
    NormalisedSection
    | FixedSection
    | PerLayerSection
    | ElementwiseSection
    | QuantileSection
    | MedianSection
    | ThirdPartySection
)
if TYPE_CHECKING:
    _Clips = FixedClip | NormalisedClip | PerLayerClip | ElementwiseClip | QuantileClip | MedianClip | ThirdPartyClip
    AnyClip = _Sections | _Clips
    ModelSection = AnyModel
else:
    AnyClip = Annotated[tagged(_Sections, "kind", "normalised"), BeforeValidator(_clip_section)]
    ModelSection = tagged(AnyModel, "kind", "linear", own="module")


def clip_of(wanted: Any, parts: tuple[int, ...], cohort: float) -> Clip | MedianClip:
    """The clip that a section names, for contributions of these layers and an expected cohort."""
    given: dict[str, Any] = wanted.model_dump()
    kind = given.pop("kind")
    if kind == "per-layer":
        if len(given["clip_norms"]) != len(parts):
            remedy = f"give one for each of the {len(parts)} layers"
            raise ConfigError(field="clip.clip_norms", value=given["clip_norms"], remedy=remedy)
        given["parts"] = parts
    elif kind == "elementwise":
        given["size"] = sum(parts)
    elif kind == "quantile" and given["bit_noise"] is None:
        given["bit_noise"] = cohort / 20
    clip: Clip | MedianClip = _CLIPS[kind](**given)
    return clip


class Private(Section):
    """The budget, and how it is spent. The budget has no default: state it, as the one who answers for the data.

    `cohort` is the expected number of clients a round, all of them unless it is given; with `grow_from` it grows from
    there (Geyer, Klein and Nabi 2017). With `noise_by` "party" each client adds noise of its own, and the server none.
    With "parties" the clients share the central noise, under masks: the server learns their sum alone, and so many
    `colluders` among them (1 unless it is given) may help it.

    With `noise` "correlated" (DP-FTRL) the plan samples no clients: they take turns in so many `groups`, by their names
    (enrolled parties by their places on the roster), and each round's noise takes back a part of the earlier rounds'.
    The noise remembers groups - 1 rounds.

    `ledger` and its `witness` are files: the place of the data's ledger, which the run begins if there is none yet.
    Without them it is in the user's state folder, or, of public data, in the run's. A ledger that this run begins has
    so much `room` beside the run's own epsilon: for evaluations, or for later runs. `released_before` states that the
    data were declared public once, or released otherwise; every statement repeats that.

    With `unit` "record" the section is `PrivateRecords`.
    """

    unit: Literal["client"] = "client"
    epsilon: float
    delta: float
    rounds: int = 20
    cohort: float | None = None
    grow_from: float | None = None
    sampling: Literal["poisson", "fixed", "everyone"] = "everyone"
    noise_by: NoiseBy = "server"
    colluders: int | None = None
    clip: AnyClip = NormalisedSection()
    noise: Literal["independent", "correlated"] = "independent"
    groups: int | None = None
    accountant: Literal["tightest", "gdp", "pld", "rdp"] = "tightest"
    room: float = 0.0
    ledger: str | None = None
    witness: str | None = None
    released_before: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """Refuse keys of the other kind of noise."""
        correlated = self.noise == "correlated"
        if correlated and self.groups is None:
            raise ConfigError(field="privacy.groups", value=None, remedy='noise = "correlated" needs a number')
        names = ("cohort", "grow_from", "sampling", "noise_by", "accountant") if correlated else ("groups",)
        other = "independent" if correlated else "correlated"
        self.refuse("privacy", names, f'it goes with noise = "{other}": leave it out')
        _check_colluders(self)


def _check_colluders(section: "Private | PrivateRecords") -> None:
    if section.noise_by != "parties":
        section.refuse("privacy", ("colluders",), 'it goes with privacy.noise_by = "parties": leave it out')


class PrivateRecords(Section):
    """The budget of each silo, and how it is used up over the rounds.

    With `noise_by` "party" each silo takes DP-SGD steps and noises them, on a budget of its own. With "server" a round
    is one step: each silo sends the clipped sum of a batch, in whole steps of a public grid, and the trusted server
    noises the total. Then one plan protects the records of all silos, and `local.batch_size` is the expected batch of
    all silos together. With "parties" the silos share the noise of that total, under masks: the server learns the
    noised total alone, and so many `colluders` among the silos (1 unless it is given) may help it.

    `records` is how many records a silo has, a public number that is declared and never counted: one for all silos, or
    one for each. For public data it may be left out: then it is what each has (see `incrowd.privacy.plan.sampling`).

    `epsilon` is one number for all silos, or one for each: the price of the rounds of this run together. They have the
    least noise that it allows; with `noise_multiplier` there are as many rounds as it allows. A ledger that this run
    begins has so much `room` beside that, for later runs. `hardlimit` may be left out: a round that would break the
    budget is always refused before it begins. `report_std` releases one noised table at the end, of how many records of
    each class the model calls which. `ledger` and `witness` are folders for the ledgers of the silos and for
    their witnesses: without them they are in the user's state folder, or, of public data, in the run's.
    `released_before` is as in `Private`.
    """

    unit: Literal["record"] = "record"
    noise_by: NoiseBy = "party"
    colluders: int | None = None
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

    def model_post_init(self, context: Any, /) -> None:
        """Refuse keys without a meaning."""
        _validate.non_negative(**self.named("privacy", "room"))
        remedy = "leave it out: a round that would break the budget never begins; for more rounds raise epsilon"
        self.refuse("privacy", ("hardlimit",), remedy)
        _check_colluders(self)
        if self.noise_by != "party":
            names = ("noise_multiplier", "report_std", "weigh")
            self.refuse("privacy", names, 'it goes with privacy.noise_by = "party": leave it out')


class LocalRecords(Descent):
    """Training of a silo in a round: DP-SGD over its records.

    `batch_size` is the expected one (as many as are declared unless it is given); `physical_batch` is how many records
    are worked on at once, which changes nothing but memory and speed.
    """

    epochs: float = 1.0
    batch_size: float | None = None
    physical_batch: Every = 256
    loss: LossName | None = None


class RunOptions(Section):
    """How a run is executed and reported.

    Randomness is the operating system's unless a seed is asked for by name; a seeded run is a simulation. Whether
    torch compiles what is computed for a client, or for a few records, follows from the length of the run, unless
    `compile` says it. A silo trains with one thread, clients with all, unless `threads` says it.

    The rest is for runs of whole clients: `unavailable` and `diagnose` for simulations. `chunk` is the number of
    contributions in memory at once; it follows from the model when it is left out, and changes nothing else.
    """

    randomness: Literal["system", "seeded"] = "system"
    seed: int | None = None
    report_every: Every = 1
    checkpoint_every: Every = 1
    keep: Every = 2
    device: str = "cpu"
    compile: Compile = "auto"
    plot: bool = True
    trackers: Annotated[tuple[TrackerName, ...], Field(strict=False)] = ()
    threads: int | None = None
    chunk: int | None = None
    unavailable: float = 0.0
    diagnose: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """A seed and seeded randomness come together, or not at all; raw contributions need a simulation."""
        if self.randomness == "seeded" and self.seed is None:
            raise ConfigError(field="run.seed", value=None, remedy='randomness = "seeded" needs one')
        if self.randomness == "system":
            self.refuse("run", ("seed",), 'ask for a simulation with run.randomness = "seeded"')
            remedy = 'it reads raw contributions, so only a simulation (run.randomness = "seeded") has it'
            self.refuse("run", ("diagnose",), remedy)


class Stop(Section):
    """When to end before the last planned round: `patience` or `target`, or both; a run without them goes to its end.

    `watch` says which figure: the "loss" or the "accuracy" on the test examples that the server holds.

    With `patience` it is over when so many reports, one after the other, were not better than the best before them;
    better means by more than `least`. With `target` it is over when the figure is as good as that.

    Guarantee: the run charges no round after the one whose report decides, and returns what the plan has left. The
    published model is that of the last round.
    """

    watch: Literal["loss", "accuracy"] = "loss"
    patience: Every | None = None
    least: float = 0.0
    target: float | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers that could not decide anything."""
        _validate.non_negative(**self.named("stop", "least"))
        if self.target is not None and self.watch != "loss" and not 0 < self.target <= 1:
            remedy = "the share that is right: give a number above 0 and at most 1"
            raise ConfigError(field="stop.target", value=self.target, remedy=remedy)

    @property
    def wanted(self) -> bool:
        """Whether anything could end the run."""
        return self.patience is not None or self.target is not None


class CommonSections(Section):
    """The sections of every run: data, what the model sees of them, the model, how it is executed, when it may stop."""

    data: DataSection = DigitsData()
    features: FeaturesSection = NoFeatures()
    model: ModelSection = LinearSection()
    server: ServerOptimizer = ServerOptimizer()
    run: RunOptions = RunOptions()
    stop: Stop = Stop()


class Config(CommonSections):
    """A whole run in which the unit is a client."""

    local: Local = Local()
    privacy: Private


class SiloConfig(CommonSections):
    """A whole run whose `privacy.unit` is "record"; each client is a silo."""

    local: LocalRecords = LocalRecords()
    privacy: PrivateRecords

    def model_post_init(self, context: Any, /) -> None:
        """Refuse settings of steps that no silo takes."""
        self.run.refuse("run", ("chunk", "unavailable", "diagnose"), "it is for whole clients: leave it out")
        if self.privacy.noise_by != "party":
            if isinstance(self.data, Parties):
                remedy = 'parties over a network noise their own steps: use "party"'
                raise ConfigError(field="privacy.noise_by", value=self.privacy.noise_by, remedy=remedy)
            remedy = 'without privacy.noise_by = "party" the server takes the steps: set server.learning_rate'
            self.local.refuse("local", ("learning_rate", "momentum", "weight_decay", "epochs"), remedy)


AnyConfig = Config | SiloConfig
