"""What a run is: the sections of a TOML file, each a frozen object.

Here are names, types and defaults. Whether a number makes sense is decided where it is used (a delta in
`incrowd.privacy.account.accounting`, a learning rate in `incrowd.learning.local`), once, before anything is written or
spent. Paths in a file are relative to that file.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError

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
from incrowd.privacy.plan.promise import Place
from incrowd.runs.explained import explained

Numbers = Annotated[tuple[float, ...], Field(strict=False)]
Words = Annotated[tuple[str, ...], Field(strict=False)]
Every = Annotated[int, Field(ge=1)]
Counts = Annotated[tuple[Every, ...], Field(strict=False)]
TrackerName = Literal["csv", "jsonl", "tensorboard", "mlflow"]


GIVEN = "given"
"""What settings say of an object that a program hands over."""

NEVER_COUNTED = (
    "how many clients private data have is never counted: state a public number that they do not exceed, say "
    "clients = 1200"
)

LOSSES = ("cross entropy", "logistic", "squared", "poisson", "absolute", "huber")


def _known_loss(name: str) -> str:
    if name not in (*LOSSES, GIVEN):
        raise ConfigError(field="local.loss", value=name, remedy=f"choose from {', '.join(LOSSES)}")
    return name


LossName = Annotated[str, AfterValidator(_known_loss)]


class Section(BaseModel):
    """A section of the file: exact types, finite numbers, no other keys, no changes afterwards."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # so that types are checked by the fields

        def __init__(self, /, **values: Any) -> None:
            """What cannot be used is a `ConfigError`."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise explained(error, type(self)) from error

        __init__.__pydantic_base_init__ = True  # sections in sections are pydantic's, which knows where they are


class DealtData(Section):
    """Examples that this machine deals out to simulated clients; `seed` decides who gets which.

    With `validation`, that share of the training examples is declared public and takes the place of the test examples:
    for whoever compares settings. These data sets are `public` unless the settings say otherwise: nobody is protected.

    Edge cases: a number that belongs to another partition is refused; so is `validation` of private examples, because a
    share of them tells how many there are.
    """

    clients: int = 100
    partition: Literal["iid", "shards", "dirichlet", "sizes"] = "iid"
    per_client: int | None = None
    alpha: float | None = None
    sigma: float | None = None
    validation: float | None = None
    seed: int = 0
    identity: str | None = None
    public: bool = True

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers of other partitions, and ask for those of this one."""
        if self.validation is not None and not self.public:
            remedy = "a share of private examples tells how many there are: leave it out, or say public = true"
            raise ConfigError(field="data.validation", value=self.validation, remedy=remedy)
        for partition, name, needed in (
            ("shards", "per_client", False),
            ("dirichlet", "alpha", True),
            ("sizes", "sigma", True),
        ):
            value = getattr(self, name)
            if value is not None and partition != self.partition:
                raise ConfigError(field=f"data.{name}", value=value, remedy=f'it goes with partition = "{partition}"')
            if value is None and needed and partition == self.partition:
                raise ConfigError(field=f"data.{name}", value=value, remedy=f'partition = "{partition}" needs a number')


class DigitsData(DealtData):
    """The embedded digits: real, 8 x 8 pixels, no file needed."""

    name: Literal["digits"] = "digits"


class MnistData(DealtData):
    """MNIST, or a data set in the same four files, in `folder`/mnist or `folder` itself."""

    name: Literal["mnist"] = "mnist"
    folder: str | None = None


class TableData(Section):
    """A table (.csv, .csv.gz, .parquet) in which a column names the client: life has dealt. Private unless stated.

    `clients` is the public number of clients, declared and never counted: of a private table nothing is counted, so it
    has to be stated (`incrowd.privacy.plan.declared` says how many there may then be).
    """

    name: Literal["table"] = "table"
    folder: str | None = None
    file: str
    test_file: str | None = None
    client: str
    label: str
    features: Words = ()
    classes: int | Words | None = None
    clients: int | None = None
    partition: Literal["column"] = "column"
    identity: str | None = None
    public: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """Ask for what may not be counted."""
        if self.clients is None and not self.public:
            remedy = f"{NEVER_COUNTED}; or public = true, where nobody is to be protected"
            raise ConfigError(field="data.clients", value=None, remedy=remedy)


class GivenData(Section):
    """Clients that a program hands over (`incrowd.Federation`); they say themselves what they are called, how many
    they are and whether they are public.
    """

    name: Literal["given"] = "given"


class FunctionData(Section):
    """What a `function` of one's own, "package:name", returns for these `arguments`: `incrowd.Clients`. It is imported
    from `folder`, that of the settings' file, or from where Python finds it.
    """

    name: Literal["function"] = "function"
    function: str
    arguments: dict[str, Any] = {}
    folder: str | None = None


class NoFeatures(Section):
    """The model sees the examples as they are."""

    name: Literal["none"] = "none"
    cache: str | None = None


class UnitFeatures(Section):
    """Every example as a vector of length one; its own mean is taken off first."""

    name: Literal["unit"] = "unit"
    centred: bool = True
    cache: str | None = None


class EnergyFeatures(Section):
    """Oriented energies of images, centred, of length one; with `upright`, drawings are first brought into shape.

    Octave 1 and stride 4 suit images of 28 pixels, octave 0 and stride 2 those of 8. With `dimensions`, the energies
    are seen along so many directions that tell random drawings apart (`incrowd.learning.features.metric`).
    """

    name: Literal["energies"] = "energies"
    octave: int = 1
    stride: int = 4
    upright: bool = False
    dimensions: int | None = None
    cache: str | None = None


class Weights(Section):
    """What every model has: its first weights are fresh ones times `start`."""

    start: float = 1.0


class LinearSection(Weights):
    """Linear outputs: softmax, logistic or linear regression, as the loss has it."""

    kind: Literal["linear"] = "linear"
    bias: bool = True


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
    """What a function of one's own, `module` = "package:name", returns for these `arguments`: a module of torch, which
    starts with its own weights. It is imported as in `FunctionData`.
    """

    kind: Literal["module"] = "module"
    module: str
    arguments: dict[str, Any] = {}
    folder: str | None = None


class Local(Section):
    """What a client does in a round: see `incrowd.learning.local.LocalTraining`."""

    learning_rate: float = 0.1
    epochs: int = 1
    batch_size: int | None = None
    batches: int | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    loss: LossName | None = None
    shuffle: bool = True


class NormalisedSection(Section):
    """Every contribution has the same norm."""

    kind: Literal["normalised"] = "normalised"
    clip_norm: float = 1.0

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """The clip, for contributions of these layers and an expected cohort."""
        return NormalisedClip(clip_norm=self.clip_norm)


class FixedSection(Section):
    """No contribution is longer than a constant."""

    kind: Literal["fixed"]
    clip_norm: float

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        return FixedClip(clip_norm=self.clip_norm)


class PerLayerSection(Section):
    """No layer of a contribution is longer than its own constant."""

    kind: Literal["per-layer"]
    clip_norms: Numbers

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        if len(self.clip_norms) != len(parts):
            raise ConfigError(
                field="clip.clip_norms", value=self.clip_norms, remedy=f"give one for each of the {len(parts)} layers"
            )
        return PerLayerClip(clip_norms=self.clip_norms, parts=parts)


class ElementwiseSection(Section):
    """No number of a contribution is larger than a constant."""

    kind: Literal["elementwise"]
    limit: float

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        return ElementwiseClip(limit=self.limit, size=sum(parts))


class QuantileSection(Section):
    """The bound follows a quantile of the norms, privately; the bit noise is a twentieth of the cohort by default."""

    kind: Literal["quantile"]
    clip_norm: float = 0.1
    bit_noise: float | None = None
    quantile: float = 0.5
    learning_rate: float = 0.2

    def clip(self, parts: tuple[int, ...], cohort: float) -> Clip:
        """See `NormalisedSection.clip`."""
        return QuantileClip(
            clip_norm=self.clip_norm,
            bit_noise=cohort / 20 if self.bit_noise is None else self.bit_noise,
            quantile=self.quantile,
            learning_rate=self.learning_rate,
        )


class MedianSection(Section):
    """The paper's clip, which is NOT private; every statement of such a run says so."""

    kind: Literal["median"]
    floor: float = 1e-12

    def clip(self, parts: tuple[int, ...], cohort: float) -> MedianClip:
        """See `NormalisedSection.clip`."""
        return MedianClip(floor=self.floor)


def _tag(key: str, default: str, *, own: str | None = None) -> Discriminator:
    """Which of several sections is meant: the one that `key` names, or `own` where that is a key."""

    def tag(value: Any) -> str:
        if isinstance(value, Mapping):
            return str(value.get(key, own if own in value else default))
        return str(getattr(value, key, default))

    return Discriminator(tag)


def _clip_section(value: Any) -> Any:
    """A clip as its section; whatever else there is stays for pydantic to judge."""
    for kind, (clip, given) in _CLIPS.items():
        if isinstance(value, clip):
            return {"kind": kind, **{name: getattr(value, name) for name in given}}
    return value


_CLIPS: dict[str, tuple[type, tuple[str, ...]]] = {
    "normalised": (NormalisedClip, ("clip_norm",)),
    "fixed": (FixedClip, ("clip_norm",)),
    "per-layer": (PerLayerClip, ("clip_norms",)),
    "elementwise": (ElementwiseClip, ("limit",)),
    "quantile": (QuantileClip, ("clip_norm", "bit_noise", "quantile", "learning_rate")),
    "median": (MedianClip, ("floor",)),
}


DataSection = Annotated[
    Annotated[DigitsData, Tag("digits")]
    | Annotated[MnistData, Tag("mnist")]
    | Annotated[TableData, Tag("table")]
    | Annotated[FunctionData, Tag("function")]
    | Annotated[GivenData, Tag("given")],
    _tag("name", "digits", own="function"),
]
FeaturesSection = Annotated[
    Annotated[NoFeatures, Tag("none")]
    | Annotated[UnitFeatures, Tag("unit")]
    | Annotated[EnergyFeatures, Tag("energies")],
    _tag("name", "none"),
]
ModelSection = Annotated[
    Annotated[LinearSection, Tag("linear")]
    | Annotated[MlpSection, Tag("mlp")]
    | Annotated[CnnSection, Tag("cnn")]
    | Annotated[FunctionModel, Tag("module")]
    | Annotated[GivenModel, Tag("given")],
    _tag("kind", "linear", own="module"),
]
ClipSection = Annotated[
    Annotated[NormalisedSection, Tag("normalised")]
    | Annotated[FixedSection, Tag("fixed")]
    | Annotated[PerLayerSection, Tag("per-layer")]
    | Annotated[ElementwiseSection, Tag("elementwise")]
    | Annotated[QuantileSection, Tag("quantile")]
    | Annotated[MedianSection, Tag("median")],
    _tag("kind", "normalised"),
    BeforeValidator(_clip_section),
]


class Private(Section):
    """The budget, and how it is spent. The budget has no default: it is for whoever answers for the data to state.

    `cohort` is the expected number of clients a round, all of them unless it is given; with `grow_from` it grows from
    there (Geyer, Klein and Nabi 2017). With `place` "local" everyone adds noise of its own, and the server none.

    With `noise` "correlated" (DP-FTRL) nobody is sampled: the clients take turns in so many `groups`, and each round's
    noise takes back a part of the earlier rounds'. The noise remembers groups - 1 rounds, or so many `buffers`.

    `ledger` and its `witness` are files: where the data's ledger has to be, and is begun if they have none yet. Without
    them it is in the user's state folder, or, of public data, in the run's.

    With `unit` "record" the section is another one: see `incrowd.runs.silo_config`.
    """

    unit: Literal["client"] = "client"
    epsilon: float
    delta: float
    rounds: int = 20
    cohort: float | None = None
    grow_from: float | None = None
    sampling: Literal["poisson", "fixed", "everyone"] = "everyone"
    place: Place = "central"
    clip: ClipSection = NormalisedSection()
    noise: Literal["independent", "correlated"] = "independent"
    groups: int | None = None
    buffers: int | None = None
    accountant: Literal["tightest", "gdp", "pld", "rdp"] = "tightest"
    ledger: str | None = None
    witness: str | None = None

    def model_post_init(self, context: Any, /) -> None:
        """Refuse what only the other kind of noise takes."""
        if self.noise == "correlated" and self.groups is None:
            raise ConfigError(field="privacy.groups", value=None, remedy='noise = "correlated" needs a number')
        correlated, sampled = ("groups", "buffers"), ("cohort", "grow_from", "sampling", "place", "accountant")
        for name in sampled if self.noise == "correlated" else correlated:
            if getattr(self, name) != type(self).model_fields[name].default:
                other = "independent" if self.noise == "correlated" else "correlated"
                remedy = f'it goes with noise = "{other}": leave it out'
                raise ConfigError(field=f"privacy.{name}", value=getattr(self, name), remedy=remedy)


class ServerOptimizer(Section):
    """What the server does with a round's mean: see `incrowd.federated.server.ServerStep`."""

    kind: Literal["sgd", "momentum", "adam"] = "sgd"
    learning_rate: float = 1.0
    momentum: float = 0.9
    decay: Literal["none", "linear"] = "none"
    average: Literal["none", "tail"] = "none"


class BasicRunOptions(Section):
    """How it is executed and reported.

    Randomness is the operating system's unless a seed is asked for by name; what is seeded is a simulation.
    """

    randomness: Literal["system", "seeded"] = "system"
    seed: int | None = None
    report_every: Every = 1
    checkpoint_every: Every = 1
    keep: Every = 2
    device: str = "cpu"
    plot: bool = True
    trackers: Annotated[tuple[TrackerName, ...], Field(strict=False)] = ()

    def model_post_init(self, context: Any, /) -> None:
        """A seed and seeded randomness come together, or not at all."""
        if self.randomness == "seeded" and self.seed is None:
            raise ConfigError(field="run.seed", value=None, remedy='randomness = "seeded" needs one')
        if self.randomness == "system" and self.seed is not None:
            raise ConfigError(
                field="run.seed", value=self.seed, remedy='ask for a simulation with run.randomness = "seeded"'
            )


class RunOptions(BasicRunOptions):
    """How a run of whole clients is executed and reported, beyond what all runs have.

    `dropout` and `diagnose` are for simulations. Of `chunk` clients the contributions are in memory at once; when it is
    left out, it follows from the model. It changes nothing else.
    """

    threads: int | None = None
    chunk: int | None = None
    dropout: float = 0.0
    diagnose: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """What reads raw contributions needs a simulation."""
        super().model_post_init(context)
        if self.randomness == "system" and self.diagnose:
            raise ConfigError(
                field="run.diagnose",
                value=True,
                remedy='it reads raw contributions, so only a simulation (run.randomness = "seeded") has it',
            )


class CommonSections(Section):
    """What every run has: data, what the model sees of them, the model, and how it is executed."""

    data: DataSection = DigitsData()
    features: FeaturesSection = NoFeatures()
    model: ModelSection = LinearSection()
    server: ServerOptimizer = ServerOptimizer()
    run: BasicRunOptions = BasicRunOptions()


class Config(CommonSections):
    """A whole run in which the unit is a client."""

    local: Local = Local()
    privacy: Private
    run: RunOptions = RunOptions()
