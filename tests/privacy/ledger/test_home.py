"""One ledger for one data set: found again by name and by content, begun once, and made anew from what is left."""

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from incrowd.errors import (
    ConfigError,
    LedgerDamaged,
    LedgerMismatch,
    LedgerMisplaced,
    LedgerRolledBack,
    LedgerUnwritable,
)
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.content import Content, DataIdentity, Declared
from incrowd.privacy.ledger.chain import Chain, check_own
from incrowd.privacy.ledger.home import Home, fresh
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.privacy.ledger.registry import Registered, state_folder
from tests.privacy.ledgers import BUDGET, EVENT, RELATION, SMALL, begin
from tests.privacy.test_content import people


@pytest.fixture
def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("INCROWD_STATE", str(folder / "state"))
    return Home.of_user()


def data(name: str = "shop", content: str | None = "1:aa", **changes: Any) -> DataIdentity:
    return DataIdentity(name=name, fingerprint=content, unit="client", **changes)


def found(home: Home, identity: DataIdentity, path: Path | None = None, **changes: Any) -> Registered:
    return home.ledger_of(identity, path=path, **({"budget": BUDGET, "relation": RELATION} | changes))


# The state folder


def test_the_state_folder_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INCROWD_STATE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_folder() == tmp_path / "own"
    monkeypatch.delenv("INCROWD_STATE")
    assert state_folder() == tmp_path / "xdg" / "incrowd"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder() == tmp_path / ".local" / "state" / "incrowd"


def test_the_key_is_made_once_for_this_user_alone(home: Home) -> None:
    key = home.key()
    assert len(key) == 32
    assert home.key() == key
    assert sorted(path.name for path in home.folder.iterdir()) == ["key", "registry.lock"]
    assert stat.S_IMODE((home.folder / "key").stat().st_mode) == 0o600
    (home.folder / "key").chmod(0o640)
    with pytest.raises(ConfigError, match="may read it"):
        home.key()
    (home.folder / "key").chmod(0o600)
    (home.folder / "key").write_bytes(b"short")
    with pytest.raises(LedgerDamaged, match="is not a key"):
        home.key()


# Found again


def test_known_data_have_the_ledger_that_they_had(home: Home) -> None:
    first = found(home, data())
    again = [data(), data("other name"), data("shop", None), data("other name", None)]
    assert {found(home, identity).id for identity in again} == {first.id}
    (known,) = home.ledgers()
    assert known.names == ("shop", "other name")
    assert known.fingerprints == ("1:aa",)
    assert found(home, data("x", "1:bb")).id != first.id
    assert found(home, DataIdentity(name="shop", fingerprint="1:aa", unit="record")).id != first.id


@pytest.mark.parametrize(
    ("identity", "changes", "words"),
    [
        (data("shop", "1:bb"), {}, "their content has changed.*incrowd ledger include"),
        (data(), {"budget": Budget(epsilon=1.0, delta=1e-6)}, "privacy.delta is 1e-05 there and 1e-06 here"),
        (data(), {"relation": Relation.REPLACE_ONE}, "privacy.sampling, is 'ADD_OR_REMOVE_ONE' there"),
        (data(division="by street"), {}, "what makes up one unit is 'by user' there and 'by street' here"),
        (data("two", "1:aa"), {}, "belongs to"),
    ],
)
def test_what_cannot_be_added_up_is_refused(
    home: Home, identity: DataIdentity, changes: dict[str, Any], words: str
) -> None:
    found(home, data(division="by user"))
    found(home, data("two", "1:cc"))
    with pytest.raises(LedgerMismatch, match=words):
        found(home, identity, **changes)
    assert [len(each.names) for each in home.ledgers()] == [1, 1]


def test_under_another_key_the_name_is_what_is_left(home: Home) -> None:
    first = found(home, data())
    with pytest.warns(UserWarning, match="known by their name alone"):
        assert found(home, data("shop", "2:bb")).id == first.id
    assert found(home, data("new name", "2:bb")).id == first.id  # and by the new fingerprint from then on
    with pytest.raises(LedgerMismatch, match="content has changed"):
        found(home, data("shop", "2:cc"))


def test_the_ledger_of_other_data_is_not_taken(home: Home, folder: Path) -> None:
    first, path = found(home, data()), folder / "own" / "ledger.sqlite"
    with pytest.raises(LedgerMismatch, match="name that one"):
        found(home, data(), path)
    with pytest.raises(LedgerMismatch, match="is the ledger of other data, 'shop'"):
        found(home, data("x", "1:bb"), first.path)
    second = found(home, data("x", "1:bb"), path)
    assert second.path == path
    assert second.witness == folder / "own" / "ledger.sqlite.witness"


def test_a_ledger_that_was_begun_by_name_takes_the_first_data_that_come(home: Home, folder: Path) -> None:
    path = folder / "ledger.sqlite"
    begun = found(home, DataIdentity(name="survey", unit="client"), path)
    assert found(home, data("/data/survey.csv", division="by user"), path).id == begun.id
    (known,) = home.ledgers()
    assert (known.names, known.fingerprints, known.division) == (("survey", "/data/survey.csv"), ("1:aa",), "by user")
    with pytest.raises(LedgerMismatch, match="other data"):
        found(home, data("other", "1:bb"), path)


@pytest.mark.usefixtures("home")
def test_a_ledger_that_is_there_and_fits_is_taken_up(folder: Path) -> None:
    for name, its, fits in (
        ("same", data(), True),
        ("by name", data("shop", None), True),
        ("other key", data("shop", "2:bb"), True),
        ("other key and name", data("x", "2:bb"), False),
        ("other content", data("shop", "1:bb"), False),
        ("public", data(public=True), False),
        ("other unit", DataIdentity(name="shop", unit="record"), False),
        ("no unit", DataIdentity(name="shop"), True),
    ):
        path, own = folder / name / "ledger.sqlite", Home(folder / name / "state")
        path.parent.mkdir(mode=0o700)
        with Ledger.open(path, budget=BUDGET, relation=RELATION, data_identity=its) as ledger:
            ledger.charge(SMALL)
        if fits:
            assert found(own, data(), path).mark.entries == 2
        else:
            with pytest.raises(LedgerMismatch, match="is the ledger of other data"):
                found(own, data(), path)


def declared(name: str = "x", content: Content | None = None) -> Declared:
    return Declared(names=(name, f"{name}, silo-1"), content=content or people(), remedy="")


def known(content: Content | None = None, **changes: Any) -> DataIdentity:
    content = content or people()
    stated: dict[str, Any] = {"name": "shop", "fingerprint": content.whole, "unit": "client", "content": content}
    return DataIdentity(**stated | changes)


def test_data_that_are_known_do_not_become_public(home: Home) -> None:
    home.check_public(declared())  # nothing is known yet, and nothing made
    assert not home.folder.exists()
    found(home, known())
    home.check_public(declared(content=people(start=100)))
    for its in (declared(), declared("shop", people(start=100)), declared(content=people(label=1))):
        with pytest.raises(LedgerMismatch, match="are declared public"):
            home.check_public(its)
        with pytest.raises(LedgerMismatch, match="are declared public"):
            home.release(its)
    assert home.released() == {}


def test_what_was_released_without_privacy_is_private_later_only_if_that_is_said(home: Home) -> None:
    home.release(declared())
    home.release(declared())  # which costs nothing
    other_key = people(start=100, key=b"o" * 32)  # that cannot be told from anything
    for content in (people(), people(label=1), people(count=15), other_key):
        with pytest.raises(LedgerMismatch, match=r"without privacy before, as 'x'.*privacy\.released_before"):
            found(home, known(content))
    assert home.ledgers() == []
    with Ledger.open(found(home, known(released=True)).path) as ledger:
        assert ledger.data_identity.released
    assert found(home, known()).names == ("shop",)  # the ledger says so
    other = found(home, known(people(start=100), name="other"))
    with pytest.raises(LedgerMismatch, match=r"does not say so.*ledger fresh --released"):
        found(home, known(people(start=100), name="other", released=True))
    later = people(start=200)
    home.release(declared("y", later))
    with pytest.raises(LedgerMismatch, match=r"as 'y'.*ledger fresh --released"):
        home.include(other, known(later, name="other"))
    again = fresh(home, other, budget=BUDGET, released=True)
    home.include(again, known(later, name="other"))
    assert found(home, known(later, name="other")).id == again.id
    with Ledger.read(fresh(home, again, budget=BUDGET).path) as ledger:
        assert ledger.data_identity.released


def test_silos_of_the_same_data_may_have_some_rows_in_common(home: Home) -> None:
    first = found(home, known(unit="record", whole="1:ff"))
    assert found(home, known(people(count=15), name="silo-2", unit="record", whole="1:ff")).id != first.id
    with pytest.raises(LedgerMismatch, match="are those of"):
        found(home, known(people(count=16), name="silo-3", unit="record", whole="1:ee"))


def test_what_was_divided_is_not_divided_otherwise_even_where_the_registry_was_lost(home: Home) -> None:
    part = DataIdentity(name="shop, silo-1", fingerprint="1:aa", unit="record", division="by user", whole="1:ff")
    first = found(home, part)
    assert first.unit == "record"
    other = replace(part, name="x, silo-1", fingerprint="1:bb", division="by age")
    with pytest.raises(LedgerMismatch, match="divided among silos before"):
        found(home, other)
    assert found(home, replace(other, division="by user")).id != first.id
    with pytest.raises(LedgerMismatch, match="are declared public"):
        home.check_public(declared(content=replace(people(), whole="1:ff")))
    home.path.unlink()
    with pytest.warns(UserWarning, match="made anew"), pytest.raises(LedgerMismatch, match="divided among silos"):
        found(home, replace(other, fingerprint="1:cc"))


def test_data_of_a_new_name_wait_for_those_of_another_key_to_be_known(home: Home) -> None:
    first = found(home, data("shop", "1:aa"))
    with pytest.raises(LedgerMismatch, match="put the key back"):
        found(home, data("x", "2:aa"))
    home.include(first, data("shop", "2:aa"))
    assert found(home, data("x", "2:aa")).id == first.id
    assert found(home, data("y", "2:bb")).id != first.id


def test_an_older_registry_is_told_of_the_ledgers_beside_it(home: Home) -> None:
    with home.alone():
        before = home.path.read_bytes()
    first = found(home, data())
    copied = home.folder / "ledgers" / "copy" / "client.sqlite"
    copied.parent.mkdir(mode=0o700)
    for name in ("", ".witness"):
        copied.with_name(copied.name + name).write_bytes(first.path.with_name(first.path.name + name).read_bytes())
        copied.with_name(copied.name + name).chmod(0o600)
    assert found(home, data()).id == first.id
    assert len(home.ledgers()) == 1
    copied.unlink()
    home.path.write_bytes(before)
    assert found(home, data("x")).id == first.id  # nothing was spent, so there is nothing to warn of
    with Ledger.open(first.path) as ledger:
        ledger.charge(EVENT)
    home.path.write_bytes(before)
    with pytest.warns(UserWarning, match="did not know"):
        assert found(home, data("x")).id == first.id


def test_a_later_version_is_included_when_it_is_said_to_be_one(home: Home) -> None:
    first = found(home, data())
    home.include(first, data("shop", "1:bb"))
    assert found(home, data("shop", "1:bb")).id == found(home, data("renamed", "1:bb")).id == first.id
    other = found(home, data("other", "1:cc"))
    with pytest.raises(LedgerMismatch, match="have a ledger already"):
        home.include(first, data("x", "1:cc"))
    home.include(other, data("other", "1:cc"))


# The registry


def lost(home: Home) -> None:
    home.path.unlink()


def damaged(home: Home) -> None:
    home.path.write_bytes(b"no database" * 100)


def forgetful(home: Home) -> None:
    with closing(sqlite3.connect(home.path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM ledgers")


@pytest.mark.parametrize(
    ("happens", "error"), [(lost, LedgerUnwritable), (damaged, LedgerDamaged), (forgetful, LedgerRolledBack)]
)
def test_the_registry_is_a_witness_of_its_ledgers(
    home: Home, happens: Callable[[Home], None], error: type[Exception]
) -> None:
    with Ledger.open(found(home, data()).path) as ledger:
        ledger.charge(SMALL)
        assert home.ledgers()[0].mark == ledger.mark
        happens(home)
        with pytest.raises(error):
            ledger.charge(SMALL)


def test_places_where_no_ledger_can_be_are_refused(folder: Path) -> None:
    (folder / "link").symlink_to(folder / "other")
    begin(folder / "link").close()  # leads nowhere, so it is free
    assert (folder / "other").is_file()
    check_own(folder / "none")
    (folder / "hard").hardlink_to(folder / "other")
    for refused, error, words in (
        (folder / "none", LedgerUnwritable, "cannot be used now"),
        (folder / "no" / "ledger", LedgerUnwritable, "check that its folder exists"),
        (folder / "hard", LedgerMisplaced, "2 names"),
        (folder, LedgerMisplaced, "is a folder: name the ledger in it"),
    ):
        with pytest.raises(error, match=words):
            Chain(refused)


def test_a_lost_registry_is_made_from_the_ledgers_beside_it(home: Home, folder: Path) -> None:
    first, second = found(home, data()), found(home, data("two", "1:bb"), folder / "two.sqlite")
    with Ledger.open(first.path) as ledger:
        ledger.charge(SMALL)
    (home.folder / "ledgers" / "cut-off").mkdir()
    (home.folder / "ledgers" / "cut-off" / "client.sqlite").touch(0o600)
    home.path.unlink()
    with pytest.warns(UserWarning, match="made anew"):
        assert found(home, data()).mark.entries == 2
    assert found(home, data("two", "1:bb"), second.path).id == second.id


def test_a_registered_ledger_has_one_witness(home: Home, folder: Path) -> None:
    known = found(home, data(), witness=folder / "other" / "witness")
    assert known.witness == folder / "other" / "witness"
    Ledger.open(known.path, witness=known.witness).close()
    Ledger.open(known.path).close()
    assert not known.path.with_name("client.sqlite.witness").exists()
    with pytest.raises(LedgerMismatch, match=r"incrowd ledger move .* --witness"):
        Ledger.open(known.path, witness=folder / "new")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_ledger_of_another_user_is_read_and_not_charged(folder: Path) -> None:
    Ledger.open(folder / "ledger", budget=BUDGET, relation=RELATION, data_identity="x").close()
    os.chown(folder / "ledger", 1234, 1234)
    assert verify(folder / "ledger")["intact"]
    with pytest.raises(LedgerMisplaced, match="may be written by another user"):
        Ledger.open(folder / "ledger")


def test_another_ledger_does_not_take_a_registered_place(home: Home, folder: Path) -> None:
    known = found(home, data())
    Ledger.open(folder / "other", budget=BUDGET, relation=RELATION, data_identity="x").close()
    (folder / "other").replace(known.path)
    (folder / "other.witness").replace(known.witness)
    with pytest.raises(LedgerRolledBack, match="another ledger than the one that is registered"):
        Ledger.open(known.path)


@pytest.mark.parametrize("first", ["silo", "all"])
def test_records_are_charged_by_silo_or_for_all_silos_together(home: Home, first: str) -> None:
    def record(name: str, content: str, **changes: Any) -> DataIdentity:
        return DataIdentity(name=name, fingerprint=content, unit="record", **changes)

    silo = record("wards, silo-1", "1:aa", whole="1:ff")
    together = record("wards", "1:ff", parts=("1:aa", "1:bb"))
    begun, other = (silo, together) if first == "silo" else (together, silo)
    ledger = found(home, begun)
    for refused in (other, replace(other, name="elsewhere", whole=None)):
        with pytest.raises(LedgerMismatch, match="by silo or for all silos together"):
            found(home, refused)
    assert found(home, begun).id == ledger.id  # the controls
    assert found(home, record("others", "1:cc", whole="1:ee")).id != ledger.id
