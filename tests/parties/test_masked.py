"""Parties over a network whose server knows sums alone: the sums of one machine, paid by each party for itself."""

import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from incrowd.errors import DataError, RoundUnanswered, SpecificationRefused
from incrowd.federation import Federation
from incrowd.parties.folder import ROSTER, PartyFolder
from incrowd.parties.frames import Place, sealed
from incrowd.parties.guard import given
from incrowd.parties.keys import question_key, read_roster
from incrowd.parties.network import offer_of
from incrowd.parties.offer import Offer
from incrowd.parties.policy import PARTY_FILE
from incrowd.parties.secure_sum import Member
from incrowd.runs.folder import database_in
from incrowd.runs.run import Run
from incrowd.runs.sources import federated_data
from incrowd.runs.work import assemble
from tests.parties.members import NAMES, ROWS, Hospitals, MemberLine, Stops, settings_text

pytestmark = [
    pytest.mark.watched,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning"),
]

CLIENTS = "epsilon = 50.0\ndelta = 1e-5\nrounds = 3\n"
RECORDS = f'unit = "record"\nepsilon = 50.0\ndelta = 1e-5\nrounds = 3\nrecords = {ROWS}\nclip_norm = 1.0\n'
PLANS = {
    "clients": f'{CLIENTS}noise_by = "parties"\n',
    "records": f'{RECORDS}noise_by = "parties"\n',
    "records, by the server": f'{RECORDS}noise_by = "server"\n',
}


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


@pytest.fixture
def line(hospitals: Hospitals) -> Iterator[MemberLine]:
    line = MemberLine(hospitals)
    yield line
    line.close()


def planned(hospitals: Hospitals, plan: str) -> None:
    """The settings of both places, and what the owners state."""
    records = plan.startswith("records")
    for here in (True, False):
        text = settings_text(here=here, privacy=PLANS[plan])
        if records:
            text = text.replace("learning_rate = 0.5\nepochs = 2\nbatch_size = 7\n", "")
            text += "[server]\nlearning_rate = 0.5\n"
        (hospitals.folder / ("here.toml" if here else "there.toml")).write_text(text)
    for name in hospitals.names:
        hospitals.state(name, more=f'unit = "record"\nrecords = {ROWS}\n' if records else "")
    compared(hospitals, *hospitals.names)


def compared(hospitals: Hospitals, *names: str) -> None:
    """These owners have compared the roster."""
    for name in names:
        PartyFolder.read(hospitals.folder / name).compared(read_roster(hospitals.folder / "enrolled"))


def run_of(hospitals: Hospitals, where: str = "there", out: str = "out") -> Run:
    return Federation.from_settings(hospitals.folder / f"{where}.toml").run_in(hospitals.folder / out)


def served(hospitals: Hospitals, line: MemberLine, **rest: Any) -> dict[str, Any]:
    return dict(hospitals.server(**rest).train_over(line, run_of(hospitals)))


@pytest.mark.parametrize("plan", PLANS)
def test_parties_elsewhere_release_the_model_of_one_machine_to_the_last_bit(
    plan: str, hospitals: Hospitals, line: MemberLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(hospitals, plan)
    with monkeypatch.context() as patched:  # the hospitals of a table are known by name, as parties are
        patched.setattr(
            "incrowd.runs.work.federated_data", lambda *given: replace(federated_data(*given), declared=None)
        )
        expected = run_of(hospitals, "here", "one").train()
    found = served(hospitals, line)
    one, other = (load_file(hospitals.folder / name / "model.safetensors") for name in ("one", "out"))
    assert {name: array.tolist() for name, array in one.items()} == {n: a.tolist() for n, a in other.items()}
    assert found["epsilon"] == expected["epsilon"]
    line.close()
    for name in NAMES:
        rows = given(hospitals.folder / name)["events"]
        assert [row["round"] for row in rows] == [0, 1, 2]
        assert all(row["asked"] for row in rows)
        assert given(hospitals.folder / name)["epsilon"] == pytest.approx(expected["epsilon"], rel=1e-6)


def in_earnest(hospitals: Hospitals, plan: str = "clients", *, rounds: int = 3, colluders: int = 1) -> None:
    """Parties and a server with the operating system's randomness."""
    planned(hospitals, plan)
    path = hospitals.folder / "there.toml"
    seeded = 'randomness = "seeded"\nseed = 3\n'
    more = f"rounds = {rounds}\ncolluders = {colluders}\n"
    path.write_text(path.read_text().replace(seeded, "").replace("rounds = 3\n", more))
    for name in hospitals.names:
        own = hospitals.folder / name / PARTY_FILE
        own.write_text(own.read_text().replace(seeded, ""))


class Deaf(MemberLine):
    """A line on which a party does not hear one kind of question, in some rounds."""

    def __init__(self, hospitals: Hospitals, name: str, kind: str, rounds: Collection[int] = range(10)) -> None:
        super().__init__(hospitals)
        self.deaf = name, kind, rounds

    def _answer(self, name: str, content: bytes) -> bytes | None:
        head = json.loads(content[20 : 20 + int.from_bytes(content[8:12], "little")])
        deaf, kind, rounds = self.deaf
        unheard = name == deaf and head["kind"] == kind and head["round"] in rounds
        return None if unheard else super()._answer(name, content)


def lost(hospitals: Hospitals) -> list[bool]:
    with database_in(hospitals.folder / "out") as database:
        return [record.lost for record in database.rounds()]


@pytest.mark.parametrize("plan", ["clients", "records"])
def test_a_party_that_is_listed_and_silent_loses_a_round_and_after_two_it_is_listed_no_more(
    plan: str, hospitals: Hospitals
) -> None:
    in_earnest(hospitals, plan, rounds=5)
    line = Deaf(hospitals, "cedar", "list", {0, 2, 4})
    served(hospitals, line)
    line.close()
    assert lost(hospitals) == [True, False, True, False, False]
    rounds = {name: [row["round"] for row in given(hospitals.folder / name)["events"]] for name in NAMES}
    assert rounds == {"amber": [0, 1, 2, 3, 4], "birch": [0, 1, 2, 3, 4], "cedar": [1]}


def test_too_few_ready_parties_end_the_run_unpaid(hospitals: Hospitals, line: MemberLine) -> None:
    in_earnest(hospitals, colluders=2)
    leaving = Deaf(hospitals, "cedar", "request")  # it agrees on keys, and hears nothing after that
    with pytest.raises(RoundUnanswered, match="2 parties are ready, and so many may collude"):
        served(hospitals, leaving, least=3)
    leaving.close()
    assert all(given(hospitals.folder / name)["events"] == [] for name in NAMES)
    assert served(hospitals, line)["rounds"] == 3  # the control: all are back


def test_a_server_that_is_killed_goes_on_with_the_next_round_and_the_same_keys(hospitals: Hospitals) -> None:
    in_earnest(hospitals, rounds=4)
    line = MemberLine(hospitals)
    with pytest.raises(KeyboardInterrupt):
        hospitals.server().train_over(line, run_of(hospitals), [Stops(after=1)])
    line.close()  # the parties' processes end, too
    found = served(hospitals, MemberLine(hospitals))
    assert found["rounds"] == 4
    assert [row["round"] for row in given(hospitals.folder / "amber")["events"]] == [0, 1, 2, 3]


def test_keys_need_all_parties_of_the_roster(hospitals: Hospitals) -> None:
    in_earnest(hospitals)
    line = Deaf(hospitals, "birch", "keys")
    with pytest.raises(DataError, match="these did not: birch"):
        served(hospitals, line)
    line.close()
    assert given(hospitals.folder / "amber")["events"] == []


def test_a_roster_that_nobody_compared_is_refused_in_words(hospitals: Hospitals, line: MemberLine) -> None:
    in_earnest(hospitals)
    (hospitals.folder / "birch" / ROSTER).unlink()
    with pytest.raises(DataError, match=r"birch does not: the roster .* is not the one that this party has compared"):
        served(hospitals, line)
    line.close()
    compared(hospitals, "birch")  # the control
    assert served(hospitals, MemberLine(hospitals))["rounds"] == 3


@pytest.mark.parametrize(
    ("stage", "sizes", "words"),
    [(1, [1], "not of all parties"), (3, [], "not of all parties"), (1, [1, 1, 1], "not as long as they say")],
)
def test_keys_that_are_not_whole_are_refused(stage: int, sizes: list[int], words: str, hospitals: Hospitals) -> None:
    in_earnest(hospitals)
    key, offer = question_key(hospitals.folder / "server"), offer_in(hospitals)
    party = hospitals.member("amber").open()
    party.answer(offer.to_bytes(key))
    place = Place(plan=offer.fingerprint, round=stage, party="")
    with pytest.raises(DataError, match=words):
        party.answer(sealed("keys", place, {"sizes": sizes}, b"", key=key))
    party.close()


def test_keys_of_a_plan_without_masks_are_refused(hospitals: Hospitals) -> None:
    key, offer = question_key(hospitals.folder / "server"), offer_in(hospitals)
    party = hospitals.member("amber").open()
    party.answer(offer.to_bytes(key))
    frame = sealed("keys", Place(plan=offer.fingerprint, round=0, party=""), {"sizes": []}, b"", key=key)
    with pytest.raises(SpecificationRefused, match="nothing is masked in this plan"):
        party.answer(frame)
    party.close()


def offer_in(hospitals: Hospitals) -> Offer:
    """The offer of the server's settings."""
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    return offer_of(assemble(federation.settings, given=federation.given))


def test_a_party_that_refuses_a_list_or_answers_another_round_counts_as_silent(
    hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_earnest(hospitals, rounds=4)
    real, seen = Member.answer, list[bytes]()

    def answer(self: Member, listed: object, *rest: Any, **named: Any) -> bytes:
        if self.name != "cedar":
            return real(self, listed, *rest, **named)
        if not seen:
            seen.append(real(self, listed, *rest, **named))
            return seen[0]
        if len(seen) == 1:
            seen.append(b"")
            return seen[0]  # of the round before
        raise SpecificationRefused("not today")

    monkeypatch.setattr(Member, "answer", answer)
    line = MemberLine(hospitals)
    served(hospitals, line)
    line.close()
    assert lost(hospitals) == [False, True, True, False]
