"""A server that offers what ends a party's process, or fills its disk."""

from dataclasses import replace
from pathlib import Path

import pytest

from incrowd.errors import SpecificationRefused
from incrowd.federation import Federation
from incrowd.flower.fleet import Asked
from incrowd.flower.node import _answer
from incrowd.learning.features.feature_map import Values
from incrowd.learning.features.table_rows import TableRows
from incrowd.parties import guard
from incrowd.parties.guard import MEMORY
from tests.attacks.test_lost_and_changed import of_clients, offered
from tests.parties.members import ALLOW, ROWS, Hospitals, MemberLine, settings_text

pytestmark = pytest.mark.watched


class Kept:
    """A line that keeps what is sent over it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def answer(self, _: object, content: bytes) -> None:
        self.sent.append(content)


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


@pytest.mark.parametrize("failure", [ImportError, ValueError])
def test_a_question_that_needs_what_is_not_there_ends_nothing(failure: type[Exception]) -> None:
    def fails(_: bytes) -> bytes:
        raise failure

    line = Kept()
    _answer(line, Asked(content=b"question", message=None), fails)  # type: ignore[arg-type]  # it stands for a line
    assert line.sent == []


@pytest.mark.parametrize(("most", "taken"), [(412, False), (413, True), (None, True)])
def test_features_of_more_numbers_than_it_allows_are_never_made(
    most: int | None, taken: bool, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows would be kept as such: a hundred million rows of 65,536 buckets, say."""
    hospitals.state("amber", allow=ALLOW if most is None else f"{ALLOW}most_features = {most}\n")
    words = '[features]\nname = "table"\nbins = 205\n'
    (hospitals.folder / "there.toml").write_text(settings_text(here=False, more=words))
    line = MemberLine(hospitals, gone={"birch", "cedar"})
    made: list[int] = []
    applied = TableRows.__call__

    def counted(own: TableRows, rows: Values) -> Values:
        made.append(len(rows))
        return applied(own, rows)

    monkeypatch.setattr(TableRows, "__call__", counted)
    said = hospitals.server().try_over(line, Federation.from_settings(hospitals.folder / "there.toml"))["amber"]
    line.close()
    assert (said == "yes") is taken
    assert (sum(made) < ROWS) is not taken
    if not taken:
        assert f"features of 413 numbers are more than this party allows, {most}" in said


@pytest.mark.slow
def test_small_plans_without_end_do_not_fill_the_disk(hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a thousandth of an epsilon, and is as long as a message can be."""
    monkeypatch.setattr(guard, "MOST_OFFERED", 2**20)
    small = of_clients(hospitals, "epsilon = 0.001\ndelta = 1e-5\nrounds = 1\n")
    padded = [replace(small, settings={**small.settings, "more": f"{n}" * 300_000}) for n in range(5)]
    taken, why = [], ""
    for offer in padded:
        try:
            taken.append(offered(hospitals, offer))
        except SpecificationRefused as refused:
            why = str(refused)
    assert "keeps no more than 1048576 bytes of offers" in why
    assert len(taken) == 3
    assert (hospitals.folder / "amber" / MEMORY).stat().st_size < 2**21
    assert offered(hospitals, padded[0]) == taken[0]  # what was taken up before is answered as before
