"""Which data a run is about: their name and a fingerprint of their content, as the ledger knows them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from incrowd.data.rows import example_rows, table_rows, table_rows_by
from incrowd.errors import ConfigError
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.identity import PUBLIC_KEY, DataIdentity, fingerprint
from incrowd.runs.build import federated_data, mnist_folder, section, whole_split
from incrowd.runs.config import CommonSections, DealtData, DigitsData, MnistData, TableData

Data = DigitsData | MnistData | TableData

_NOT_PUBLIC = "leave data.public out"


def identity_of(config: CommonSections) -> DataIdentity:
    """The data of a run that protects whole clients.

    Guarantee: the fingerprint is over what is in the file, or in the examples before they are dealt: all columns of
    every row. It does not depend on the order of rows, on the file's name, on features or on the model. Who is a client
    (the column of a table, or how examples were dealt) is the identity's `division`.

    Edge cases: data that are declared public and known as somebody's, in whatever unit, raise `LedgerMismatch`. The
    embedded digits never are. A test file is declared public by being one: private data that have a ledger are refused
    as such, and so is the run's own private table (`ConfigError`), for what is measured there is not paid for.
    """
    data = config.data
    with section("data"):
        whole = _whole(data)
        return DataIdentity(
            name=_name(data), public=data.public, unit="client", division=_division(data, "client"), fingerprint=whole
        )


def identities_of_silos(config: CommonSections) -> list[DataIdentity]:
    """The data of each silo, whose records are protected: see `identity_of`. The fingerprint is over its own rows;
    `whole` is that of all silos' together, and `division` says how they were divided.
    """
    data = config.data
    with section("data"):
        whole, key, silos = _whole(data), _key(data), _rows_by_silo(config)
        common = DataIdentity(name=_name(data), public=data.public, unit="record", division=_division(data, "silo"))
        if _may_be_private(data):
            for place, rows in enumerate(silos, start=1):
                _check_public(_of_silo(common.name, place), rows, remedy=_NOT_PUBLIC)
        return [
            replace(common, name=_of_silo(common.name, place), fingerprint=fingerprint(rows, key=key), whole=whole)
            for place, rows in enumerate(silos, start=1)
        ]


def _whole(data: Data) -> str:
    """The fingerprint of all the data, which are what they are said to be."""
    found = fingerprint(_rows(data), key=_key(data))
    if _may_be_private(data):
        _check_public(_name(data), _rows(data), remedy=_NOT_PUBLIC)
    if isinstance(data, TableData) and data.test_file is not None:
        test = data.model_copy(update={"file": data.test_file, "identity": None})
        _check_test(test, None if data.public else found)
    return found


def _may_be_private(data: Data) -> bool:
    """Whether data that are declared public might be somebody's; the digits come with this package."""
    return data.public and not isinstance(data, DigitsData)


def _check_public(name: str, rows: Iterable[bytes], *, remedy: str) -> None:
    """The data are not known as somebody's: under this name, as silos of it, or by their content."""
    home = Home.of_user()
    if home.registry.path.exists():
        content = fingerprint(rows, key=home.key())
        for known_as in (name, _of_silo(name, 1)):
            home.check_public(known_as, content, remedy=remedy)


def _check_test(test: TableData, private: str | None) -> None:
    """What is measured on a test file is shown and not charged, so it must not be what is to be protected."""
    if private is not None and fingerprint(_rows(test), key=_key(test)) == private:
        remedy = "it holds the private table itself, and what is measured on it is not paid for: name public examples"
        raise ConfigError(field="test_file", value=test.file, remedy=remedy)
    remedy = "what is measured on them is not paid for, so name another data.test_file"
    _check_public(_name(test), _rows(test), remedy=remedy)


def _key(data: Data) -> bytes:
    return PUBLIC_KEY if data.public else Home.of_user().key()


def _of_silo(name: str, place: int) -> str:
    return f"{name}, silo-{place}"


def _name(data: Data) -> str:
    if data.identity is not None:
        return data.identity
    if isinstance(data, TableData):
        return str(_table(data).resolve())
    return data.name if isinstance(data, DigitsData) else str(mnist_folder(data.folder).resolve())


def _division(data: DealtData | TableData, unit: str) -> str:
    """Who is a client, or a silo."""
    if isinstance(data, TableData):
        without = "" if data.holdout_clients is None else f", {data.holdout_clients!r} of them held out"
        return f"one {unit} for each {data.client}{without}"
    given = {name: getattr(data, name) for name in ("per_client", "alpha", "sigma", "validation")}
    numbers = "".join(f", {name} {value!r}" for name, value in given.items() if value is not None)
    return f"{data.partition} over {data.clients} {unit}s, seed {data.seed}{numbers}"


def _table(data: TableData) -> Path:
    return Path(data.folder or ".") / data.file


def _rows(data: Data) -> Iterable[bytes]:
    if isinstance(data, TableData):
        return table_rows(_table(data), data.meaning().reading)
    return example_rows(whole_split(data).train)


def _rows_by_silo(config: CommonSections) -> list[list[bytes]]:
    """Of each silo, in the order of their places."""
    data = config.data
    if not isinstance(data, TableData):
        dealt = federated_data(config)
        return [list(example_rows(dealt.examples, dealt.client(silo))) for silo in range(dealt.clients)]
    return list(table_rows_by(_table(data), data.client, data.meaning().reading).values())
