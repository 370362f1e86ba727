"""What a run is: the sections of a TOML file, each a frozen object.

Here are names, types and defaults. Whether a number makes sense is decided where it is used (a delta in
`incrowd.privacy.account.accounting`), once, before anything is written or spent; `incrowd.settings` has the sections
that are used as they are. Paths in a file are relative to that file.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from incrowd.errors import ConfigError
from incrowd.privacy.plan.plan import NoiseBy
from incrowd.runs.clip_config import AnyClip, NormalisedSection
from incrowd.runs.data_config import DataSection, DigitsData
from incrowd.runs.stopping import Stop
from incrowd.settings.compiling import Compile
from incrowd.settings.local import Local
from incrowd.settings.section import Counts, Every, Range, Section, tag
from incrowd.settings.server import ServerOptimizer

TrackerName = Literal["csv", "jsonl", "tensorboard", "mlflow"]


class NoFeatures(Section):
    """The model sees the examples as they are."""

    name: Literal["none"] = "none"
    cache: str | None = None


class UnitFeatures(Section):
    """Every example as a vector of length one; its own mean is taken off first. With `constant` there is one more
    feature, which every example has: the bias of a linear model.
    """

    name: Literal["unit"] = "unit"
    centred: bool = True
    constant: float = 0.0
    cache: str | None = None


class EnergyFeatures(Section):
    """How strong waves of light and dark of each direction are around each place of a grey image, centred, of length
    one (`incrowd.learning.features.OrientedEnergies`). An `octave` of 1 and a `stride` of 4 pixels suit images of 28
    pixels, 0 and 2 those of 8. With `constant` there is one more feature, which every example has.
    """

    name: Literal["energies"] = "energies"
    octave: int = 1
    stride: int = 4
    constant: float = 0.0
    cache: str | None = None


class PictureFeatures(Section):
    """Energies and patches of pictures, grey or in colours, along `dimensions` directions in which made-up pictures
    differ, whitened (`incrowd.learning.features.picture_map`), of length one. With `constant` there is one more
    feature, which every example has: the bias of a linear model.
    """

    name: Literal["pictures"] = "pictures"
    dimensions: int = 256
    constant: float = 0.1
    cache: str | None = None


class ModuleFeatures(Section):
    """The outputs of a frozen module that a function of your own, `module` = "package:name", returns for these
    `arguments`, with length one; it is imported as in `FunctionData`. `weights` is a file of the module's state, of
    safetensors. With `constant` there is one more feature, which every example
    has: the bias of a linear model.
    """

    name: Literal["module"] = "module"
    module: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    weights: str | None = None
    folder: str | None = None
    constant: float = 0.1
    cache: str | None = None


class TableFeatures(Section):
    """A row of a table with stated columns, as a vector of length one: numbers as `bins` ramps over their stated
    ranges, levels centred (`incrowd.learning.features.TableRows`). Of the square of a row's length, numbers as they
    are encoded have a share of `raw` at most. With `constant` there is one more feature, which every row has: the bias
    of a linear model.
    """

    name: Literal["table"] = "table"
    bins: int = 4
    raw: float = 0.0
    constant: float = 0.1
    cache: str | None = None


class PieceFeatures(Section):
    """The pieces of an example, counted in `buckets` (`incrowd.learning.features.Spread`). With `constant` there is one
    more feature, which every example has: the bias of a linear model.
    """

    buckets: int = 1024
    constant: float = 0.1
    cache: str | None = None


class TextFeatures(PieceFeatures):
    """The pieces of a row whose columns are all texts (`incrowd.data.grams`)."""

    name: Literal["text"] = "text"


class TokenFeatures(PieceFeatures):
    """A sequence of tokens, which are whole numbers, as its pieces of 1 to `longest` tokens
    (`incrowd.learning.features.TokenGrams`): those that `reads` "end" finds before the token that follows, or "all".
    """

    name: Literal["tokens"] = "tokens"
    longest: int = 3
    reads: Literal["end", "all"] = "all"
    padding: int | None = None


class Weights(Section):
    """What every model has: its first weights are fresh ones times `init_scale`."""

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
    """What a function of one's own, `module` = "package:name", returns for these `arguments`: a module of torch, which
    starts with its own weights. It is imported as in `FunctionData`.
    """

    kind: Literal["module"] = "module"
    module: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    folder: str | None = None


FeaturesSection = Annotated[
    Annotated[NoFeatures, Tag("none")]
    | Annotated[UnitFeatures, Tag("unit")]
    | Annotated[EnergyFeatures, Tag("energies")]
    | Annotated[PictureFeatures, Tag("pictures")]
    | Annotated[TableFeatures, Tag("table")]
    | Annotated[TextFeatures, Tag("text")]
    | Annotated[TokenFeatures, Tag("tokens")]
    | Annotated[ModuleFeatures, Tag("module")],
    tag("name", "none", own="module"),
]
ModelSection = Annotated[
    Annotated[LinearSection, Tag("linear")]
    | Annotated[MlpSection, Tag("mlp")]
    | Annotated[CnnSection, Tag("cnn")]
    | Annotated[FunctionModel, Tag("module")]
    | Annotated[GivenModel, Tag("given")],
    tag("kind", "linear", own="module"),
]


class Private(Section):
    """The budget, and how it is spent. The budget has no default: it is for whoever answers for the data to state.

    `cohort` is the expected number of clients a round, all of them unless it is given; with `grow_from` it grows from
    there (Geyer, Klein and Nabi 2017). With `noise_by` "party" everyone adds noise of its own, and the server none.

    With `noise` "correlated" (DP-FTRL) nobody is sampled: the clients take turns in so many `groups`, by their names
    (enrolled parties by their places on the roster), and each round's noise takes back a part of the earlier rounds'.
    The noise remembers groups - 1 rounds.

    `ledger` and its `witness` are files: where the data's ledger has to be, and is begun if they have none yet. Without
    them it is in the user's state folder, or, of public data, in the run's. One that this run begins has so much `room`
    beside the run's own epsilon: for evaluations, or for later runs. `released_before` says that the data were declared
    public once, or released otherwise, and so does every statement then.

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
    clip: AnyClip = NormalisedSection()
    noise: Literal["independent", "correlated"] = "independent"
    groups: int | None = None
    accountant: Literal["tightest", "gdp", "pld", "rdp"] = "tightest"
    room: float = 0.0
    ledger: str | None = None
    witness: str | None = None
    released_before: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """Refuse what only the other kind of noise takes."""
        if self.noise == "correlated" and self.groups is None:
            raise ConfigError(field="privacy.groups", value=None, remedy='noise = "correlated" needs a number')
        correlated, sampled = ("groups",), ("cohort", "grow_from", "sampling", "noise_by", "accountant")
        for name in sampled if self.noise == "correlated" else correlated:
            if getattr(self, name) != type(self).model_fields[name].default:
                other = "independent" if self.noise == "correlated" else "correlated"
                remedy = f'it goes with noise = "{other}": leave it out'
                raise ConfigError(field=f"privacy.{name}", value=getattr(self, name), remedy=remedy)


class BasicRunOptions(Section):
    """How it is executed and reported.

    Randomness is the operating system's unless a seed is asked for by name; what is seeded is a simulation. Whether
    torch compiles what is computed for a client, or for a few records, follows from the length of the run, unless
    `compile` says it.
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

    `unavailable` and `diagnose` are for simulations. Of `chunk` clients the contributions are in memory at once; when
    it is left out, it follows from the model. It changes nothing else.
    """

    threads: int | None = None
    chunk: int | None = None
    unavailable: float = 0.0
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
    """What every run has: data, what the model sees of them, the model, how it is executed, and when it may stop."""

    data: DataSection = DigitsData()
    features: FeaturesSection = NoFeatures()
    model: ModelSection = LinearSection()
    server: ServerOptimizer = ServerOptimizer()
    run: BasicRunOptions = BasicRunOptions()
    stop: Stop = Stop()


class Config(CommonSections):
    """A whole run in which the unit is a client."""

    local: Local = Local()
    privacy: Private
    run: RunOptions = RunOptions()
