"""A party's folder, its owner's file, and what it does not do."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from incrowd.errors import ConfigError, DataError
from incrowd.parties.folder import PartyFolder, attending, new_folder
from incrowd.parties.guard import given
from incrowd.parties.keys import Invitation, read_enrolment, read_roster
from incrowd.parties.policy import PARTY_FILE, PartyFile
from tests.command import command
from tests.flower.deployment import wait_for
from tests.parties.members import ALLOW, Hospitals, MemberLine, Stops, party_text
from tests.parties.test_server import run_of


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


def test_a_new_party_has_keys_an_enrolment_and_a_file_to_fill_in(hospitals: Hospitals) -> None:
    tmp_path = hospitals.folder
    table, folder = tmp_path / "amber.csv", tmp_path / "dune"
    made = new_folder(folder, "dune", tmp_path / "server" / "invitation.json", table=table)
    assert read_enrolment(folder / "dune.pub") == made
    text = (folder / PARTY_FILE).read_text()
    assert '"dose" = "?"' in text
    assert 'file = "../amber.csv"' in text
    assert table.read_text().splitlines()[1] not in text
    with pytest.raises(ConfigError, match="fill it in"):
        PartyFolder.read(folder)


@pytest.mark.parametrize("broken", ["", "[]", "{}", '{"format": "incrowd invitation 1"}', "[" * 10_000, "x" * 2**17])
def test_what_is_no_invitation_is_refused(broken: str, tmp_path: Path) -> None:
    (tmp_path / "i.json").write_text(broken)
    with pytest.raises(DataError, match="no invitation"):
        Invitation.read(tmp_path / "i.json")


def test_rows_that_are_not_as_stated_are_told_to_the_owner_alone(hospitals: Hospitals) -> None:
    hospitals.state("amber", columns="age = {range = [0, 30]}\n")
    with pytest.raises(DataError, match=r"amber.csv, line \d+: age = .* outside of the stated range"):
        hospitals.member("amber").check()


def test_a_party_that_has_left_takes_part_in_nothing_and_keeps_nothing_reserved(hospitals: Hospitals) -> None:
    line = MemberLine(hospitals)
    with pytest.raises(KeyboardInterrupt):
        hospitals.server(say=lambda _: None).train_over(line, run_of(hospitals), [Stops()])
    line.close()
    before = given(hospitals.folder / "amber")
    hospitals.member("amber").leave()
    after = given(hospitals.folder / "amber")
    assert before["epsilon"] == after["epsilon"] == after["promised"] < before["promised"]
    with pytest.raises(ConfigError, match="left for good"):
        hospitals.member("amber")


def test_a_party_that_answers_cannot_leave_meanwhile(hospitals: Hospitals) -> None:
    member = hospitals.member("amber")
    with attending(member.folder), pytest.raises(ConfigError, match="stop it first"):
        member.leave()
    hospitals.member("amber")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (party_text("amber").replace('label = "back"', 'label = "?"'), "data.label"),
        (party_text("amber", data='label = "back"\n'), "data.file"),
        (party_text("amber", columns=""), "data.columns"),
        (party_text("amber", columns="age = {range = [0]}\n"), "data.columns.age.range"),
        (party_text("amber", allow="epsilon = 1.0\n"), "allow.delta"),
        (party_text("amber", allow=ALLOW + "epsilon_a_day = 1.0\n"), "allow.epsilon_a_day"),
        (party_text("amber").replace("seed = 3\n", ""), "seed"),
    ],
)
def test_what_an_owner_got_wrong_is_named(text: str, field: str, hospitals: Hospitals) -> None:
    (hospitals.folder / "amber" / PARTY_FILE).write_text(text)
    with pytest.raises(ConfigError) as refused:
        PartyFile.read(hospitals.folder / "amber")
    assert refused.value.field == field


def test_arrays_of_a_function_of_ones_own_are_offered_by_their_form(hospitals: Hospitals) -> None:
    folder = hospitals.folder
    (folder / "own_arrays.py").write_text(
        "import numpy as np\ndef load(seed):\n    g = np.random.default_rng(seed)\n"
        "    return g.normal(size=(9, 4, 4)).astype(np.float32), g.integers(0, 3, 9)\n"
    )
    own = 'function = "own_arrays:load"\nfolder = ".."\nclasses = 3\narguments = {seed = 1}\n'
    for name in hospitals.names:
        text = party_text(name, data=own).replace("[data.columns]\n", "").replace("age = {range = [0, 120]}\n", "")
        text = text.replace('dose = {range = [0, 10]}\nsex = {levels = ["f", "m"]}\n', "")
        (folder / name / PARTY_FILE).write_text(text)
    data = '[data]\nname = "parties"\nfederation = "arrays"\nenrolled = "enrolled"\nshape = [4, 4]\nclasses = 3\n'
    rest = '[privacy]\nepsilon = 50.0\ndelta = 1e-5\nrounds = 2\n[run]\nrandomness = "seeded"\nseed = 1\n'
    (folder / "there.toml").write_text(data + rest)
    line = MemberLine(hospitals)
    assert hospitals.server(say=lambda _: None).train_over(line, run_of(hospitals))["rounds"] == 2
    line.close()
    (folder / "there.toml").write_text(data.replace("[4, 4]", "[16]").replace('"arrays"', '"others"') + rest)
    with pytest.raises(DataError, match="this party has examples"):
        hospitals.server(say=lambda _: None).train_over(line, run_of(hospitals, out="other"))
    line.close()


def test_the_commands_of_a_party(
    hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = command(monkeypatch, capsys, "party"), hospitals.folder
    invitation = str(folder / "server" / "invitation.json")
    made = run("new", str(folder / "dune"), "--invitation", invitation, "--json").object()
    assert made["server_fingerprint"] == Invitation.read(folder / "server" / "invitation.json").fingerprint
    assert run("new", str(folder / "dune"), "--invitation", invitation).status == 2
    found = run("check", str(folder / "amber"), "--json").object()
    assert (found["party"], found["rows"], found["fields"]) == ("amber", 30, ["age", "dose", "sex"])
    assert run("leave", str(folder / "amber"), "--json").object() == {"party": str(folder / "amber"), "left": True}
    assert "left for good" in run("check", str(folder / "amber")).err


@pytest.mark.slow
def test_a_party_that_is_stopped_says_what_it_has_given(hospitals: Hospitals) -> None:
    party = hospitals.folder / "amber"
    words = [sys.executable, "-m", "incrowd", "flower", "join", str(party), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        wait_for((party / "lock").exists, 60)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    found = json.loads(said)
    assert (found["intact"], found["events"], found["epsilon"], found["refused"]) == (True, [], 0.0, [])


def test_owners_compare_one_fingerprint_and_accept_it(
    hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, enrolled = command(monkeypatch, capsys), hospitals.folder / "enrolled"
    found = run("party", "compare", str(enrolled), "--json").object()
    assert found["fingerprint"] in run("party", "compare", str(enrolled)).out
    assert len(found["fingerprint"].split()) == 8
    run("party", "compare", str(enrolled), "--accept", str(hospitals.folder / "amber"))
    assert hospitals.member("amber").roster == read_roster(enrolled)
    (enrolled / "amber.pub").unlink()
    other = run("party", "compare", str(enrolled), "--accept", str(hospitals.folder / "amber"))
    assert other.status == 2
    assert "it has no amber" in other.err
    assert run("party", "compare", str(enrolled), "--json").object()["fingerprint"] != found["fingerprint"]
