"""Which data a run is about: their name and a fingerprint of their content, as the ledger knows them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from incrowd.data.rows import example_rows, table_rows
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.identity import PUBLIC_KEY, DataIdentity, fingerprint
from incrowd.runs.build import federated_data, mnist_folder, section, whole_split
from incrowd.runs.config import CommonSections, DealtData, DigitsData, MnistData, TableData


def identity_of(config: CommonSections) -> DataIdentity:
    """The data of a run that protects whole clients.

    Guarantee: the fingerprint is over what is in the file, or in the examples before they are dealt: all columns of
    every row. It does not depend on the order of rows, on the file's name, on features or on the model. Who is a client
    (the column of a table, or how examples were dealt) is the identity's `division`.

    Edge cases: data that are declared public and known as somebody's raise `LedgerMismatch`. The embedded digits never
    are.
    """
    data = config.data
    with section("data"):
        identity = DataIdentity(name=_name(data), public=data.public, unit="client", division=_division(data))
        return _recognised(identity, lambda: _rows(data), known=isinstance(data, DigitsData))


def identities_of_silos(config: CommonSections) -> list[DataIdentity]:
    """The data of each silo, whose records are protected: see `identity_of`; the fingerprint is over its own rows."""
    data = config.data
    with section("data"):
        return [
            _recognised(
                DataIdentity(name=f"{_name(data)}, silo-{place}", public=data.public, unit="record"),
                rows.__iter__,
                known=isinstance(data, DigitsData),
            )
            for place, rows in enumerate(_rows_by_silo(config), start=1)
        ]


def _recognised(identity: DataIdentity, rows: Callable[[], Iterable[bytes]], *, known: bool) -> DataIdentity:
    """The identity with the fingerprint of its rows; `known` to everyone are the data that come with this package."""
    home = Home.of_user()
    if not identity.public:
        return replace(identity, fingerprint=fingerprint(rows(), key=home.key()))
    if home.registry.path.exists() and not known:
        home.check_public(replace(identity, public=False, fingerprint=fingerprint(rows(), key=home.key())))
    return replace(identity, fingerprint=fingerprint(rows(), key=PUBLIC_KEY))


def _name(data: DigitsData | MnistData | TableData) -> str:
    if data.identity is not None:
        return data.identity
    if isinstance(data, TableData):
        return str(_table(data).resolve())
    return data.name if isinstance(data, DigitsData) else str(mnist_folder(data.folder).resolve())


def _division(data: DealtData | TableData) -> str:
    """Who is a client."""
    if isinstance(data, TableData):
        return f"one client for each {data.client}"
    given = {name: getattr(data, name) for name in ("per_client", "alpha", "sigma", "validation")}
    numbers = "".join(f", {name} {value!r}" for name, value in given.items() if value is not None)
    return f"{data.partition} over {data.clients} clients, seed {data.seed}{numbers}"


def _table(data: TableData) -> Path:
    return Path(data.folder or ".") / data.file


def _rows(data: DigitsData | MnistData | TableData) -> Iterable[bytes]:
    if isinstance(data, TableData):
        return (row for _, row in table_rows(_table(data)))
    return example_rows(whole_split(data).train)


def _rows_by_silo(config: CommonSections) -> list[list[bytes]]:
    """Of each silo, in the order of their places."""
    data = config.data
    if not isinstance(data, TableData):
        dealt = federated_data(config)
        return [list(example_rows(dealt.examples, dealt.client(silo))) for silo in range(dealt.clients)]
    by_silo: dict[str, list[bytes]] = {}
    for texts, row in table_rows(_table(data)):
        by_silo.setdefault(texts[data.client], []).append(row)
    return [by_silo[name] for name in sorted(by_silo)]
