"""Real parties, asked by a server that holds no data: who takes part, and what comes out."""

import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from incrowd.errors import ConfigError, DataError
from incrowd.federation import Federation
from incrowd.flower.serve import PartyServer as FlowerServer
from incrowd.flower.simulation import Simulation
from incrowd.parties.guard import given
from incrowd.runs.folder import Summary
from incrowd.runs.run import Run
from tests.command import command
from tests.parties.members import ALLOW, NAMES, After, Hospitals, MemberLine, settings_text

PRIVACIES = {
    "central": "epsilon = 50.0\ndelta = 1e-5\nrounds = 3\n",
    "drawn": 'epsilon = 50.0\ndelta = 1e-5\nrounds = 4\nsampling = "poisson"\ncohort = 2\n',
    "local": 'epsilon = 50.0\ndelta = 1e-5\nrounds = 2\nnoise_by = "party"\n',
    "correlated": 'epsilon = 50.0\ndelta = 1e-5\nrounds = 4\nnoise = "correlated"\ngroups = 3\n',
    "adaptive": (
        'epsilon = 50.0\ndelta = 1e-5\nrounds = 3\nclip = {kind = "quantile", clip_norm = 0.1, bit_noise = 4.0}\n'
    ),
}


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


@pytest.fixture
def line(hospitals: Hospitals) -> Iterator[MemberLine]:
    made = MemberLine(hospitals)
    yield made
    made.close()


def run_of(hospitals: Hospitals, name: str = "there", out: str = "out") -> Run:
    return Federation.from_settings(hospitals.folder / f"{name}.toml").run_in(hospitals.folder / out)


def served(hospitals: Hospitals, line: MemberLine, **rest: object) -> Summary:
    return hospitals.server(say=lambda _: None, **rest).train_over(line, run_of(hospitals))


@pytest.mark.slow
@pytest.mark.parametrize("kind", PRIVACIES)
def test_parties_with_their_own_tables_release_the_model_of_one_machine(
    kind: str, hospitals: Hospitals, line: MemberLine
) -> None:
    for name, here in (("here", True), ("there", False)):
        (hospitals.folder / f"{name}.toml").write_text(settings_text(here=here, privacy=PRIVACIES[kind]))
    run_of(hospitals, "here", "one").train()
    summary = served(hospitals, line)
    one, other = (load_file(hospitals.folder / name / "model.safetensors") for name in ("one", "out"))
    if kind != "correlated":  # where turns go by places on the roster, and here by a hash of the name
        assert {name: array.tolist() for name, array in one.items()} == {n: a.tolist() for n, a in other.items()}
    assert summary["clients"] == 3
    line.close()
    for name in NAMES:
        assert given(hospitals.folder / name)["epsilon"] > 0


def test_a_server_without_parties_trains_nothing(hospitals: Hospitals) -> None:
    with pytest.raises(ConfigError, match="incrowd flower serve"):
        run_of(hospitals).train()
    with pytest.raises(ConfigError, match="incrowd flower serve"):
        Simulation().train(run_of(hospitals))
    with pytest.raises(ConfigError, match="incrowd train"):
        hospitals.server().check_run(run_of(hospitals, "here", "one"))


def test_a_run_waits_for_all_unless_told_otherwise(hospitals: Hospitals, line: MemberLine) -> None:
    line.gone.add("cedar")
    with pytest.raises(DataError, match=r"2 of 3 parties take part; not there: cedar; 3 are needed"):
        served(hospitals, line)
    assert served(hospitals, line, least=2)["rounds"] == 3


WIDER = 'age = {range = [0, 150]}\ndose = {range = [0, 10]}\nsex = {levels = ["f", "m"]}\n'
REFUSING: dict[str, tuple[dict[str, str], str]] = {
    "models": ({"allow": f'{ALLOW}models = ["mlp"]\n'}, "a model of the kind 'linear' is not one that this party"),
    "columns": ({"columns": WIDER}, r"columns\.age\.range = .*within \('0', '150'\)"),
    "room": ({"allow": "epsilon = 7.5\ndelta = 1e-5\n"}, "this party's allowance has no room for it;"),
}


@pytest.mark.parametrize("why", REFUSING)
def test_a_party_that_does_not_allow_it_is_named_with_its_reason_and_nothing_else_of_it(
    why: str, hospitals: Hospitals, line: MemberLine
) -> None:
    stated, words = REFUSING[why]
    hospitals.state("birch", **stated)
    with pytest.raises(DataError, match=f"birch does not: {words}") as refused:
        served(hospitals, line)
    assert "7.5" not in str(refused.value)
    assert str(hospitals.folder) not in str(refused.value)
    line.close()
    assert given(hospitals.folder / "birch").get("promised", 0) == 0


def test_a_party_that_comes_later_takes_part_from_then_on(hospitals: Hospitals, line: MemberLine) -> None:
    line.gone.add("cedar")

    come = After(lambda _: line.gone.clear())
    hospitals.server(say=lambda _: None, least=2).train_over(line, run_of(hospitals), [come])
    line.close()
    rounds = {
        name: [row["round"] for row in given(hospitals.folder / name)["events"] if row["asked"]] for name in NAMES
    }
    assert rounds == {"amber": [0, 1, 2], "birch": [0, 1, 2], "cedar": [1, 2]}


def test_a_party_whose_enrolment_is_taken_away_is_not_asked_any_more(hospitals: Hospitals, line: MemberLine) -> None:
    def leave(_: object) -> None:
        place = hospitals.folder / "enrolled" / "amber.pub"
        place.rename(place.with_suffix(".gone"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hospitals.server(say=lambda _: None).train_over(line, run_of(hospitals), [After(leave)])
    (hospitals.folder / "enrolled" / "amber.gone").rename(hospitals.folder / "enrolled" / "aside")
    with pytest.raises(ConfigError, match=r"enrolled = 2: the run began with 3"):
        run_of(hospitals)
    (hospitals.folder / "enrolled" / "aside").rename(hospitals.folder / "enrolled" / "amber.gone")
    served(hospitals, line)
    assert line.removed == {"amber"}
    line.close()
    assert [row["round"] for row in given(hospitals.folder / "amber")["events"]] == [0]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
def test_a_server_that_is_told_to_stop_keeps_its_state_and_ends_well(
    number: signal.Signals,
    status: int,
    hospitals: Hospitals,
    line: MemberLine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_of(hospitals, "here", "one").train()
    push, requests = line.push, list[bytes]()

    def told(nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        requests.extend([content] if b'"kind":"request"' in content else [])
        if len(requests) == 2:
            requests.append(b"")
            signal.raise_signal(number)
        return push(nodes, content, seconds)

    monkeypatch.setattr(line, "push", told)
    monkeypatch.setattr(FlowerServer, "link", lambda *_: nullcontext(line))
    folder, before = hospitals.folder, signal.getsignal(signal.SIGTERM)
    words = ["serve", str(folder / "there.toml"), "--keys", str(folder / "server"), "--out", str(folder / "out")]
    try:
        serve = command(monkeypatch, capsys, "flower")
        stopped = serve(*words, "--log-json")
        assert (stopped.status, "go on with" in stopped.err) == (status, True)
        lines = [json.loads(each) for each in stopped.err.splitlines() if each.startswith("{")]
        assert any(each["event"] == "server" and "3 of 3" in each["says"] for each in lines)
        assert serve(*words).status == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    one, other = (load_file(folder / name / "model.safetensors") for name in ("one", "out"))
    assert {name: array.tolist() for name, array in one.items()} == {n: a.tolist() for n, a in other.items()}


def test_trying_out_reserves_nothing_anywhere(hospitals: Hospitals, line: MemberLine) -> None:
    line.gone.add("cedar")
    hospitals.state("birch", allow='epsilon = 100.0\ndelta = 1e-5\nfields = ["age"]\n')
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    found = hospitals.server().try_over(line, federation)
    assert found["amber"] == "yes"
    assert "the field dose is not one that this party lets models use" in found["birch"]
    assert found["cedar"] == "no answer"
    line.close()
    assert given(hospitals.folder / "amber")["promised"] == 0


def silo_settings(hospitals: Hospitals) -> None:
    """The same of silos, of which each protects its records."""
    privacy = 'unit = "record"\nepsilon = 40.0\ndelta = 1e-3\nrounds = 3\nrecords = 30\nclip_norm = 1.0\n'
    for name, here in (("here", True), ("there", False)):
        text = settings_text(here=here, privacy=privacy)
        text = text.replace("clients = 3\n", 'clients = 3\nnames = ["amber", "birch", "cedar"]\n')
        (hospitals.folder / f"{name}.toml").write_text(text)
    for name in NAMES:
        hospitals.state(name, more='unit = "record"\nrecords = 30\n', allow="epsilon = 80.0\ndelta = 1e-3\n")


@pytest.mark.slow
def test_silos_with_their_own_tables_release_the_model_of_one_machine(hospitals: Hospitals, line: MemberLine) -> None:
    silo_settings(hospitals)
    expected = run_of(hospitals, "here", "one").train()
    summary = served(hospitals, line)
    assert not line.failed
    one, other = (load_file(hospitals.folder / name / "model.safetensors") for name in ("one", "out"))
    assert {name: array.tolist() for name, array in one.items()} == {n: a.tolist() for n, a in other.items()}
    assert summary["epsilon_by_silo"] == expected["epsilon_by_silo"]
    line.close()
    for name in NAMES:
        shown = given(hospitals.folder / name)
        assert shown["epsilon"] == pytest.approx(summary["epsilon_by_silo"][name])


@pytest.mark.slow
def test_a_silo_is_tried_out_and_refuses_by_its_words_alone(hospitals: Hospitals, line: MemberLine) -> None:
    silo_settings(hospitals)
    hospitals.state("birch", more='unit = "record"\nrecords = 40\n', allow="epsilon = 80.0\ndelta = 1e-3\n")
    hospitals.state("cedar", allow="epsilon = 80.0\ndelta = 1e-3\n")
    found = hospitals.server().try_over(line, Federation.from_settings(hospitals.folder / "there.toml"))
    assert found["amber"] == "yes"
    assert "a plan for 30 records, and this silo states 40" in found["birch"]
    assert "an offer for the unit 'record'" in found["cedar"]
    line.close()
    assert given(hospitals.folder / "amber")["promised"] == 0
