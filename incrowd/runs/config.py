"""The settings of a run: the sections of a TOML file, each a frozen object, inert.

Here are names, types and defaults; the code that uses a number checks it, once, before anything is written or spent.
`incrowd.runs.data_config` has the sections `data` and `features`, `incrowd.settings` those that learning reads.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    create_model,
    model_serializer,
    model_validator,
)

from incrowd import _extensions, _validate
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
    ThirdPartyClip,
)
from incrowd.privacy.plan.plan import NoiseBy, Unit
from incrowd.runs.data_config import DataSection, DigitsData, FeaturesSection, NoFeatures
from incrowd.settings import (
    Compile,
    Counts,
    Every,
    Local,
    Numbers,
    Range,
    Section,
    ServerOptimizer,
    Words,
    explained,
    tagged,
)

DEMONSTRATION = Path(__file__).with_name("demonstration.toml")  # the run that needs no file: the embedded digits
_BARE = re.compile(r"[A-Za-z][A-Za-z0-9_./: -]*")

TRACKERS = ("csv", "jsonl", "tensorboard", "mlflow", "wandb")


class Weights(Section):
    """The start of every model of ours: fresh weights times `init_scale`."""

    init_scale: float = 1.0

    def model_post_init(self, context: Any, /) -> None:
        """Refuse a negative factor."""
        _validate.non_negative(**self.named("model", "init_scale"))


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
    """A module that a program hands over (`incrowd.Federation`); it starts with the weights that it has."""

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


_CLIPS: Mapping[str, tuple[type, dict[str, Any]]] = {
    "normalised": (NormalisedClip, {}),
    "fixed": (FixedClip, {}),
    "per-layer": (PerLayerClip, {}),
    "elementwise": (ElementwiseClip, {}),
    "quantile": (QuantileClip, {"clip_norm": 0.1, "bit_noise": None}),  # without it, a twentieth of the cohort
    "median": (MedianClip, {}),
    "third-party": (ThirdPartyClip, {}),
}
"""The clips by their kinds in settings, and defaults of their own there."""

_NOT_STATED = ("parts", "size", "private")  # parts of a clip that follow from the model, or from its kind


def _section(kind: str, clip: type, defaults: Mapping[str, Any]) -> type[Section]:
    """The section that states a clip of this kind: its kind, and the fields that do not follow from the model."""
    stated: dict[str, Any] = {"kind": (Literal[kind], kind)}
    for each in fields(clip):
        if each.name not in _NOT_STATED:
            default = defaults.get(each.name, ... if each.default is MISSING else each.default)
            exact: Any = Numbers if each.name == "clip_norms" else each.type
            stated[each.name] = (exact | None if default is None else exact, default)
    made: type[Section] = create_model(f"{clip.__name__}Section", __base__=Section, __module__=__name__, **stated)
    return made


_SECTIONS = {kind: _section(kind, clip, defaults) for kind, (clip, defaults) in _CLIPS.items()}
globals().update({each.__name__: each for each in _SECTIONS.values()})  # where pickle looks for them
_USUAL: Any = _SECTIONS["normalised"]()


def _clip_section(value: Any) -> Any:
    """A clip as its section; pydantic judges other values."""
    for kind, (clip, _) in _CLIPS.items():
        if isinstance(value, clip):
            return {"kind": kind, **{name: item for name, item in vars(value).items() if name not in _NOT_STATED}}
    return value


if TYPE_CHECKING:
    AnyClip = FixedClip | NormalisedClip | PerLayerClip | ElementwiseClip | QuantileClip | MedianClip | ThirdPartyClip
    ModelSection = AnyModel
else:
    AnyClip = Annotated[tagged(Union[*_SECTIONS.values()], "kind", "normalised"), BeforeValidator(_clip_section)]
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
    clip: Clip | MedianClip = _CLIPS[kind][0](**given)
    return clip


class Private(Section):
    """The budget, which has no default, and how it is spent (docs/settings.md, docs/silos.md).

    `unit` is a whole "client", or each "record" of a client, who is then a silo. With `noise_by` "server", the default
    for clients, the server adds the noise; with "party", the default for records, each client or silo; with "parties"
    they share the central noise under masks, and so many `colluders` among them (1 by default) may help the server.

    Silos that each add noise take DP-SGD steps on separate budgets: `epsilon` may be one for each, and at a stated
    `noise_multiplier` the run has as many rounds as the budget allows. Otherwise a round is one step along the clipped
    sum of all silos' batches, `local.batch_size` is the expected batch of all together, and one plan protects all
    records. `records`, a declared number that is never counted, is one for all silos, or one for each.

    With `noise` "correlated" (DP-FTRL) clients take turns in `groups`, by their names (enrolled parties by their places
    on the roster), and each round's noise takes back a part of the noise of the groups - 1 rounds before.
    """

    unit: Unit = "client"
    noise_by: NoiseBy = "server"
    colluders: int | None = None
    epsilon: float | Numbers
    delta: float
    rounds: int = 20
    room: float = 0.0
    ledger: str | None = None
    witness: str | None = None
    released_before: bool = False
    cohort: float | None = None
    grow_from: float | None = None
    sampling: Literal["poisson", "fixed", "everyone"] = "everyone"
    clip: AnyClip = _USUAL
    noise: Literal["independent", "correlated"] = "independent"
    groups: int | None = None
    accountant: Literal["tightest", "gdp", "pld", "rdp"] = "tightest"
    records: Every | Counts | None = None
    noise_multiplier: float | None = None
    clip_norm: float = 1.0

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        of_records = isinstance(values, Mapping) and values.get("unit") == "record"
        return {"noise_by": "party", "rounds": 10, **values} if of_records else values

    def model_post_init(self, context: Any, /) -> None:
        """Refuse keys of the other unit and of other noise."""
        _check_unit(self.unit, privacy=self)
        _validate.non_negative(**self.named("privacy", "room"))
        if self.noise_by != "parties":
            self.refuse("privacy", ("colluders",), 'it goes with privacy.noise_by = "parties": leave it out')
        correlated = self.noise == "correlated"
        if correlated and self.groups is None:
            raise ConfigError(field="privacy.groups", value=None, remedy='noise = "correlated" needs a number')
        independent = "cohort", "grow_from", "sampling", "noise_by", "accountant"
        other = "independent" if correlated else "correlated"
        remedy = f'it goes with noise = "{other}": leave it out'
        self.refuse("privacy", independent if correlated else ("groups",), remedy)
        if self.noise_by != "party":
            self.refuse("privacy", ("noise_multiplier",), 'it goes with privacy.noise_by = "party": leave it out')
        if isinstance(self.epsilon, tuple) and not self.by_silo:
            remedy = "one plan protects all clients, or the records of all silos: give one number"
            raise ConfigError(field="privacy.epsilon", value=self.epsilon, remedy=remedy)

    @property
    def by_silo(self) -> bool:
        """Whether each silo has a separate plan and ledger."""
        return self.unit == "record" and self.noise_by == "party"

    @property
    def budget(self) -> Budget:
        """The budget of the one plan, or the smallest of the silos'."""
        epsilon = min(self.epsilon) if isinstance(self.epsilon, tuple) else self.epsilon
        return Budget(epsilon=epsilon, delta=self.delta)


_OF_OTHERS: dict[str, dict[str, tuple[str, ...]]] = {
    "client": {"privacy": ("records", "noise_multiplier", "clip_norm"), "local": ("physical_batch",)},
    "record": {
        "privacy": ("cohort", "grow_from", "sampling", "clip", "noise", "groups", "accountant"),
        "local": ("optimizer", "algorithm", "batches", "proximal", "shuffle", "label_shares", "label_distribution"),
        "run": ("chunk", "unavailable", "diagnose"),
    },
}
"""The keys that do not go with a unit, section by section."""


def _check_unit(unit: Unit, **sections: Section) -> None:
    other = next(each for each in get_args(Unit) if each != unit)
    for name, section in sections.items():
        section.refuse(name, _OF_OTHERS[unit].get(name, ()), f'it goes with privacy.unit = "{other}": leave it out')


class RunOptions(Section):
    """How a run is executed and reported (docs/settings.md).

    Randomness is the operating system's unless settings state a seed; a seeded run is a simulation. `chunk`, the number
    of contributions in memory at once, changes only memory and speed.
    """

    randomness: Literal["system", "seeded"] = "system"
    seed: int | None = None
    report_every: Every = 1
    checkpoint_every: Every = 1
    keep: Every = 2
    device: str = "cpu"
    compile: Compile = "auto"
    trackers: Words = ()
    threads: int | None = None
    chunk: int | None = None
    unavailable: float = 0.0
    diagnose: bool = False

    def model_post_init(self, context: Any, /) -> None:
        """A seed and seeded randomness come together, or not at all; raw contributions need a simulation."""
        for place, name in enumerate(self.trackers):
            if name not in TRACKERS:
                _extensions.found("trackers", name, field=f"run.trackers[{place}]", known=TRACKERS)
        if self.randomness == "seeded" and self.seed is None:
            raise ConfigError(field="run.seed", value=None, remedy='randomness = "seeded" needs one')
        if self.randomness == "system":
            self.refuse("run", ("seed",), 'ask for a simulation with run.randomness = "seeded"')
            remedy = 'it reads raw contributions, so only a simulation (run.randomness = "seeded") has it'
            self.refuse("run", ("diagnose",), remedy)


class CommonSections(Section):
    """The sections of every run but its promise: data, what the model sees of them, the model, how it is trained and
    executed.
    """

    data: DataSection = DigitsData()
    features: FeaturesSection = NoFeatures()
    model: ModelSection = LinearSection()
    local: Local = Local()
    server: ServerOptimizer = ServerOptimizer()
    run: RunOptions = RunOptions()

    def check_unit(self, unit: Unit) -> None:
        """Refuse keys of the other unit."""
        _check_unit(unit, local=self.local, run=self.run)
        if unit == "client":
            self.local.check_whole()


class Config(CommonSections):
    """A whole run."""

    privacy: Private

    def model_post_init(self, context: Any, /) -> None:
        """Refuse keys of the other unit, and settings of steps that no silo takes."""
        self.check_unit(self.privacy.unit)
        if self.of_records and not self.privacy.by_silo:
            remedy = 'without privacy.noise_by = "party" the server takes the steps: set server.learning_rate'
            self.local.refuse("local", ("learning_rate", "momentum", "weight_decay", "epochs"), remedy)

    @property
    def of_records(self) -> bool:
        """Whether single records are protected; each client is then a silo."""
        return self.privacy.unit == "record"

    @model_serializer(mode="wrap")
    def _of_its_unit(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Only keys that go with the unit are written."""
        others = _OF_OTHERS[self.privacy.unit]
        return {
            name: {key: value for key, value in section.items() if key not in others.get(name, ())}
            for name, section in written(self).items()
        }


def tables(
    path: Path | str | None = None,
    *,
    overrides: Sequence[str] = (),
    data: Path | str | None = None,
    promise_only: bool = False,
) -> dict[str, Any]:
    """The tables of a file, with `key=value` overrides and another data folder; without a file, the demonstration, or
    with `promise_only` its data and budget. Relative paths are those of docs/settings.md; a plain word needs no quotes.
    """
    source = DEMONSTRATION if path is None else Path(path)
    settings = _read(source)
    if promise_only and path is None:
        budget = {name: settings["privacy"][name] for name in ("epsilon", "delta")}
        settings = {"data": settings["data"], "privacy": budget, "run": settings["run"]}
    moved = data is not None or any(override.partition("=")[0].strip() == "data.folder" for override in overrides)
    _make_absolute(settings, source.parent, files=not moved)
    for override in overrides:
        _put(settings, override)
    if data is not None:
        section = settings.setdefault("data", {})
        if isinstance(section, dict) and section.get("name", "digits") != "digits":
            section["folder"] = str(data)
    _make_absolute(settings, Path.cwd(), files=True)
    return settings


def parse(settings: Mapping[str, object] | str) -> Config:
    """The config that TOML tables spell, or the JSON that `model_dump_json` wrote."""
    try:
        return Config.model_validate_json(settings) if isinstance(settings, str) else Config.model_validate(settings)
    except ValidationError as error:
        raise explained(error, Config) from error


def read_back(dump: Mapping[str, Any]) -> Config:
    """The settings that `model_dump(mode="json")` gave."""
    return parse(json.dumps(dump))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            field="config", value=str(path), remedy=f"give a readable TOML file ({error.strerror})"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(field="config", value=str(path), remedy=f"it is not TOML: {error}") from error


_PATHS = (
    ("data", "folder"),
    ("data", "enrolled"),
    ("features", "cache"),
    ("features", "weights"),
    ("privacy", "ledger"),
    ("privacy", "witness"),
)
_FILES = ("data", "file"), ("data", "test_file")
_OWN_CODE = ("data", "function"), ("model", "module"), ("features", "module")  # the user's code, beside the file


def _make_absolute(settings: dict[str, Any], folder: Path, *, files: bool) -> None:
    """Paths are seen from this folder; so are the `files` of a table that names no folder for them."""
    place = folder.resolve()
    sections = {name: section for name, section in settings.items() if isinstance(section, dict)}
    of_table = files and not isinstance(sections.get("data", {}).get("folder"), str)
    for name, key in (*_PATHS, *(_FILES if of_table else ())):
        if isinstance(path := sections.get(name, {}).get(key), str):
            sections[name][key] = str(place / path)
    for name, key in _OWN_CODE:
        if key in sections.get(name, {}):
            sections[name]["folder"] = str(place / str(sections[name].get("folder", ".")))


def _put(settings: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, name = key.strip().split(".")
    if not equals or not name:
        raise ConfigError(field="set", value=override, remedy="write section.key=value, say local.learning_rate=0.1")
    table, value = settings, text.strip()
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(field=key, value=text, remedy=f"{section} is a value, not a section")
    try:
        table[name] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        if not _BARE.fullmatch(value):
            remedy = "write a TOML value: 0.1, true, [1, 2] or a word"
            raise ConfigError(field=key, value=value, remedy=remedy) from error
        table[name] = value
