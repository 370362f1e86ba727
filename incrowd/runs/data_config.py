"""The data and what a model sees of them: the sections `data` and `features` of the settings."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from incrowd.data.clients import MEASURED, TestClients
from incrowd.data.columns import BLANK, Columns
from incrowd.data.reading import MISSING, Reading
from incrowd.data.schema import Column
from incrowd.errors import ConfigError
from incrowd.settings import Counts, Range, Section, Words, tagged

NEVER_COUNTED = (
    "how many clients private data have is never counted: state a public number that they do not exceed, say "
    "clients = 1200"
)


class PartitionedData(Section):
    """Examples that this machine divides among simulated clients; public unless the settings say otherwise.

    With `validation`, that share of the training examples is declared public and replaces the test examples.
    """

    clients: int = 100
    partition: Literal["iid", "shards", "dirichlet"] = "iid"
    per_client: int | None = None
    alpha: float | None = None
    validation: float | None = None
    seed: int = 0
    identity: str | None = None
    public: bool = True

    def model_post_init(self, context: Any, /) -> None:
        """Refuse numbers of other partitions, and ask for those of this one."""
        if self.validation is not None and not self.public:
            remedy = "a share of private examples tells how many there are: leave it out, or say public = true"
            raise ConfigError(field="data.validation", value=self.validation, remedy=remedy)
        for partition, name in (("shards", "per_client"), ("dirichlet", "alpha")):
            value = getattr(self, name)
            if value is not None and partition != self.partition:
                raise ConfigError(field=f"data.{name}", value=value, remedy=f'it goes with partition = "{partition}"')
        if self.partition == "dirichlet" and self.alpha is None:
            raise ConfigError(field="data.alpha", value=None, remedy='partition = "dirichlet" needs a number')


class DigitsData(PartitionedData):
    """The embedded digits: real, 8 x 8 pixels, no file needed."""

    name: Literal["digits"] = "digits"


class MnistData(PartitionedData):
    """MNIST, or a data set in the same four files, in `folder`/mnist or `folder` itself."""

    name: Literal["mnist"] = "mnist"
    folder: str | None = None


class Meaning(Section):
    """The meaning of a table's columns, and the form of its cells (`incrowd.data.Reading`)."""

    label: str = ""
    features: Words = ()
    classes: int | Words | None = None
    label_range: Range | None = None
    columns: dict[str, Any] = Field(default_factory=dict)
    delimiter: str = ","
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    blanks: Literal["refuse", "strip", "keep"] = "refuse"
    missing_texts: Words = MISSING

    def meaning(self, *, client: str | None = "") -> Columns:
        """The columns and their form; `client` names the column of the owner."""
        written = self.model_dump(include={field.name for field in fields(Reading)})
        stated = {name: getattr(self, name) for name in ("label", "features", "classes", "label_range")}
        return Columns(client=client, **stated, schema=self.columns, reading=Reading(**written))

    def check_meaning(self, *, client: str | None = "") -> None:
        """Ask for what a template leaves open, and refuse what means nothing."""
        for name, value, what in (
            ("client", client, "name the column that says whose row it is"),
            ("label", self.label, "name the column to learn"),
            ("classes", self.classes, "give the labels in order, or leave it out where they are numbers"),
        ):
            if value in (BLANK, (BLANK,)):
                raise ConfigError(field=f"data.{name}", value=BLANK, remedy=f"fill it in: {what}")
        for column, words in self.columns.items():
            if isinstance(words, Column):
                remedy = 'write it as settings do, say {"range": [0, 120]}'
                raise ConfigError(field=f"data.columns.{column}", value=type(words).__name__, remedy=remedy)
        try:
            self.meaning(client=client)
        except ConfigError as error:
            raise ConfigError(field=f"data.{error.field}", value=error.value, remedy=error.remedy) from error


class Table(Meaning):
    """A table in a file (.csv, .csv.gz, .parquet), private unless stated; its columns are as in `Meaning`.

    The column `client` has the clients' names; without it each row is a client. `clients` is their public number, which
    a private table has to state. `names` declares silos, who are public.
    """

    name: Literal["table"] = "table"
    folder: str | None = None
    file: str
    test_file: str | None = None
    client: str | None = None
    label: str
    clients: int | None = None
    names: Words = ()
    test_clients: TestClients = "separate"
    holdout_clients: float | None = None
    partition: Literal["column"] = "column"
    identity: str | None = None
    public: bool = False

    def meaning(self, *, client: str | None = "") -> Columns:
        """See `Meaning`."""
        return super().meaning(client=client or self.client)

    def model_post_init(self, context: Any, /) -> None:
        """Ask for what may not be counted, and for what a template leaves open."""
        self.check_meaning(client=self.client)
        if self.test_clients == "shared" and not self.public:
            raise ConfigError(field="data.test_clients", value=self.test_clients, remedy=MEASURED)
        if self.clients is None and not self.public:
            remedy = f"{NEVER_COUNTED}; or public = true, where nobody is to be protected"
            raise ConfigError(field="data.clients", value=None, remedy=remedy)


class Parties(Meaning):
    """Real parties, each of which keeps its private data: `incrowd flower serve`.

    Their ledger knows them by the name `federation`. `enrolled` is a folder with the enrolment of each, NAME.pub. They
    learn from tables with the same columns, or from arrays: examples of a `shape` and a `type`, which mean
    ``features * scale + offset``. `test_file` is a public table that the server holds.
    """

    name: Literal["parties"] = "parties"
    federation: str
    enrolled: str
    folder: str | None = None
    test_file: str | None = None
    shape: Counts = ()
    type: Literal["float32", "uint8", "int64"] = "float32"
    scale: float = 1.0
    offset: float = 0.0

    def model_post_init(self, context: Any, /) -> None:
        """A table, or arrays: keys of the other are refused."""
        if not self.federation.strip():
            raise ConfigError(field="data.federation", value=self.federation, remedy="give the federation a name")
        if not self.shape:
            if not self.label or not self.columns:
                remedy = "say what the columns of the parties' tables mean, and which is learned; or give a shape"
                raise ConfigError(field="data.columns", value=self.columns, remedy=remedy)
            self.check_meaning()
        others: tuple[str, ...] = ("type", "scale", "offset")
        beside = "a table"
        if self.shape:
            others, beside = ("label", "features", "columns", "test_file"), "a shape"
        for name in others:
            if (value := getattr(self, name)) not in ((), {}, type(self).model_fields[name].default):
                remedy = f"it does not go with {beside}: leave one of them out"
                raise ConfigError(field=f"data.{name}", value=value, remedy=remedy)
        if self.type == "uint8" and "scale" not in self.model_fields_set:
            remedy = "state 0.00392156862745098 (1 / 255) for bytes of pictures, or 1 for numbers as they are"
            raise ConfigError(field="data.scale", value=None, remedy=remedy)
        if self.shape and not isinstance(self.classes, int | None):
            remedy = "labels of arrays are 0, 1, ..: give their number, or leave it out where they are numbers"
            raise ConfigError(field="data.classes", value=self.classes, remedy=remedy)


class GivenData(Section):
    """Clients that a program hands over (`incrowd.Federation`), with their public facts."""

    name: Literal["given"] = "given"


class FunctionData(Section):
    """The `incrowd.Clients` that a `function` of your own, "package:name", returns for these `arguments`. It is
    imported from `folder`, that of the settings' file, or from where Python finds it.
    """

    name: Literal["function"] = "function"
    function: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    folder: str | None = None


class SourceData(Section):
    """The clients that a data source of an installed package (entry points `incrowd.data_sources`) reads."""

    name: Literal["source"] = "source"
    source: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    classes: int | Words | None = None
    clients: int | None = None
    identity: str
    public: bool = False


AnyData = DigitsData | MnistData | Table | Parties | FunctionData | SourceData | GivenData
if TYPE_CHECKING:
    DataSection = AnyData
else:
    DataSection = tagged(AnyData, "name", "digits", own="function")


class _Features(Section):
    """A map from examples to vectors of length one; `constant` is one more feature, the bias of a linear model."""

    constant: float = 0.1
    cache: str | None = None


class NoFeatures(Section):
    """The model sees the examples as they are."""

    name: Literal["none"] = "none"
    cache: str | None = None


class UnitFeatures(_Features):
    """Every example as a vector of length one; its mean is subtracted first."""

    name: Literal["unit"] = "unit"
    centred: bool = True
    constant: float = 0.0


class EnergyFeatures(_Features):
    """Strokes of each direction around each place of a grey image (`incrowd.learning.features.OrientedEnergies`)."""

    name: Literal["energies"] = "energies"
    octave: int = 1
    stride: int = 4
    constant: float = 0.0


class PictureFeatures(_Features):
    """Energies and patches of pictures along `dimensions` directions (`incrowd.learning.features.picture_map`)."""

    name: Literal["pictures"] = "pictures"
    dimensions: int = 256


class ModuleFeatures(_Features):
    """The outputs of a frozen module that a function of your own returns, as in `FunctionData`. `weights` is a
    safetensors file of the module's state.
    """

    name: Literal["module"] = "module"
    module: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    weights: str | None = None
    folder: str | None = None


class MapFeatures(_Features):
    """A feature map of an installed package (entry points `incrowd.feature_maps`), made from these `arguments`."""

    name: Literal["map"] = "map"
    map: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class TableFeatures(_Features):
    """A row of a table: ramps over stated ranges, centred levels (`incrowd.learning.features.TableRows`)."""

    name: Literal["table"] = "table"
    bins: int = 4
    raw: float = 0.0


class PieceFeatures(_Features):
    """The pieces of an example, counted in `buckets` (`incrowd.learning.features.Spread`)."""

    buckets: int = 1024


class TextFeatures(PieceFeatures):
    """The pieces of a row whose columns are all texts (`incrowd.data.schema`)."""

    name: Literal["text"] = "text"


class TokenFeatures(PieceFeatures):
    """Tokens as their pieces of 1 to `longest` tokens (`incrowd.learning.features.TokenGrams`). With `reads`
    "end" they are the last ones, before the token that follows.
    """

    name: Literal["tokens"] = "tokens"
    longest: int = 3
    reads: Literal["end", "all"] = "all"
    padding: int | None = None


AnyFeatures = (
    NoFeatures
    | UnitFeatures
    | EnergyFeatures
    | PictureFeatures
    | TableFeatures
    | TextFeatures
    | TokenFeatures
    | ModuleFeatures
    | MapFeatures
)
if TYPE_CHECKING:
    FeaturesSection = AnyFeatures
else:
    FeaturesSection = tagged(AnyFeatures, "name", "none", own="module")
