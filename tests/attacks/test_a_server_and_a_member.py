"""A server whose offer reaches for the party's machine: its files, its memory, its time."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from incrowd import _extensions
from incrowd.errors import RoundUnanswered, SpecificationRefused
from incrowd.federation import Federation
from incrowd.learning.features import UnitNorm
from incrowd.learning.local_algorithms import Sgd
from incrowd.parties.guard import LEDGER, given
from incrowd.parties.keys import question_key
from incrowd.parties.network import offer_of
from incrowd.parties.offer import Offer
from incrowd.parties.participant import Participant
from incrowd.runs.config import Config
from incrowd.runs.run import Run
from incrowd.runs.work import assemble
from incrowd.types import register
from tests.parties.members import Hospitals, MemberLine
from tests.parties.parties import request


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


@pytest.fixture
def party(hospitals: Hospitals) -> Iterator[Participant]:
    made = hospitals.member("amber").open()
    assert isinstance(made, Participant)
    yield made
    made.close()


def offer_with(hospitals: Hospitals, change: Callable[[dict[str, Any]], object]) -> Offer:
    """The honest offer, with settings that were changed."""
    federation = Federation.from_settings(hospitals.folder / "there.toml")
    assert isinstance(federation.settings, Config)
    offer = offer_of(assemble(federation.settings, given=federation.given, schedule=federation.schedule))
    settings = {name: dict(section) for name, section in offer.settings.items()}
    change(settings)
    return offer.replaced(settings=settings)


def reply(hospitals: Hospitals, party: Participant, offer: Offer, kind: Any) -> bytes:
    return party.answer(offer.to_bytes(question_key(hospitals.folder / "server"), kind=kind))


@pytest.mark.parametrize("kind", ["offer", "trial"])
def test_an_honest_offer_is_accepted(kind: str, hospitals: Hospitals, party: Participant) -> None:
    """The control."""
    assert reply(hospitals, party, offer_with(hospitals, lambda _: None), kind)


PATHS: dict[str, Callable[[dict[str, Any], str], object]] = {
    "a cache": lambda settings, path: settings.update(features={"name": "unit", "cache": path}),
    "a cache of nothing": lambda settings, path: settings.update(features={"name": "none", "cache": path}),
    "a folder of code": lambda settings, path: settings["model"].update(folder=path),
    "a folder of an encoder": lambda settings, path: settings.update(features={"module": "a:b", "folder": path}),
    "weights of an encoder": lambda settings, path: settings.update(features={"module": "a:b", "weights": path}),
    "a folder of data": lambda settings, path: settings["data"].update(folder=path),
    "a table": lambda settings, path: settings["data"].update(test_file=path),
}


@pytest.mark.parametrize("kind", ["offer", "trial"])
@pytest.mark.parametrize("way", PATHS)
def test_no_file_of_the_party_s_is_read_or_written_for_a_server(
    way: str, kind: str, hospitals: Hospitals, party: Participant
) -> None:
    aim = hospitals.folder / "aim"
    offer = offer_with(hospitals, lambda settings: PATHS[way](settings, str(aim)))
    with pytest.raises(SpecificationRefused, match="names files of this machine"):
        reply(hospitals, party, offer, kind)
    assert not aim.exists()
    assert not (hospitals.folder / "amber" / LEDGER).exists()


@pytest.mark.parametrize("kind", ["offer", "trial"])
def test_no_function_that_a_server_names_makes_features(
    kind: str, hospitals: Hospitals, party: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = hospitals.folder / "called"
    code = f"import pathlib\ndef make():\n    pathlib.Path({str(called)!r}).touch()\n"
    (hospitals.folder / "code_of_a_server.py").write_text(code)
    monkeypatch.syspath_prepend(str(hospitals.folder))
    offer = offer_with(hospitals, lambda settings: settings.update(features={"module": "code_of_a_server:make"}))
    with pytest.raises(SpecificationRefused, match="no server may name code"):
        reply(hospitals, party, offer, kind)
    assert not called.exists()
    reply(hospitals, party, offer_with(hospitals, len), kind)  # the control: the honest offer


@pytest.mark.watched
@pytest.mark.parametrize("kind", ["offer", "trial"])
@pytest.mark.parametrize("named", ["map", "algorithm"])
def test_no_extension_that_a_server_names_meets_examples(
    kind: str, named: str, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: a package that a party has for another federation is run on its examples. The control allows it."""
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    register("feature_maps", "mine", UnitNorm)
    register("local_algorithms", "mine", Sgd)
    offer = offer_with(
        hospitals,
        lambda settings: (
            settings["local"].update(algorithm="mine")
            if named == "algorithm"
            else settings.update(features={"name": "map", "map": "mine"})
        ),
    )
    member = hospitals.member("amber")
    refused = pytest.raises(SpecificationRefused, match=r"no server may name code|algorithms that this party allows")
    with contextlib.closing(member.open()) as party, refused:
        reply(hospitals, party, offer, kind)
    allow = member.file.allow.replaced(algorithms=("mine",))
    with contextlib.closing(replace(member, file=member.file.replaced(allow=allow)).open()) as party:
        if named == "algorithm":
            reply(hospitals, party, offer, kind)


GREEDY: dict[str, Callable[[dict[str, Any]], object]] = {
    "wide layers": lambda settings: settings.update(model={"kind": "mlp", "hidden": [10**6, 10**6]}),
    "a wide layer": lambda settings: settings.update(model={"kind": "mlp", "hidden": [10**12]}),
    "many layers": lambda settings: settings.update(model={"kind": "mlp", "hidden": [1] * 100_000}),
    "passes without end": lambda settings: settings["local"].update(epochs=10**12),
    "passes of no number": lambda settings: settings["local"].update(epochs="many"),
    "batches without end": lambda settings: settings["local"].update(batches=10**12, batch_size=None),
    "wide strides": lambda settings: settings.update(features={"name": "energies", "stride": 10**9}),
}


@pytest.mark.parametrize("kind", ["offer", "trial"])
@pytest.mark.parametrize("way", GREEDY)
def test_neither_memory_nor_time_is_taken_for_what_is_out_of_all_proportion(
    way: str, kind: str, hospitals: Hospitals, party: Participant
) -> None:
    """Terabytes, or years, which this test has not."""
    with pytest.raises(SpecificationRefused):
        reply(hospitals, party, offer_with(hospitals, GREEDY[way]), kind)
    assert not (hospitals.folder / "amber" / LEDGER).exists()
    [refused] = given(hospitals.folder / "amber")["refused"]
    assert refused["round"] is None


def test_a_machine_that_is_put_back_from_an_image_gets_nothing_new_and_its_operator_is_told(
    hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that it knows, its ledger and the ledger's witness: then only the parties notice."""
    machine = hospitals.folder / "machine"
    monkeypatch.setenv("INCROWD_STATE", str(machine / "state"))
    text = (hospitals.folder / "there.toml").read_text()
    (hospitals.folder / "there.toml").write_text(text.replace('randomness = "seeded"\nseed = 3\n', ""))
    line, said = MemberLine(hospitals), list[str]()
    run = Federation.from_settings(hospitals.folder / "there.toml").run_in(machine / "out")
    with pytest.raises(KeyboardInterrupt):
        hospitals.server(say=said.append).train_over(line, run, [Stops()])
    shutil.copytree(machine, hospitals.folder / "image")
    hospitals.server(say=said.append).train_over(line, Run.open(machine / "out"))
    assert not [words for words in said if "refuses" in words]
    shutil.rmtree(machine)
    shutil.copytree(hospitals.folder / "image", machine)
    with pytest.raises(RoundUnanswered, match="refused it"):
        hospitals.server(say=said.append).train_over(line, Run.open(machine / "out"))
    line.close()
    assert any("a party that was asked refuses: another question was asked in round 2" in words for words in said)
    for name in hospitals.names:
        found = given(hospitals.folder / name)
        assert [row["round"] for row in found["events"]] == [0, 1, 2]
        assert [row["round"] for row in found["refused"]] == [2]


class Stops:
    """Kills the server after a round."""

    def start(self, *_: object) -> None: ...
    def end(self, *_: object) -> None: ...
    def round(self, _: object) -> None:
        raise KeyboardInterrupt


def test_trials_without_end_leave_nothing_behind(hospitals: Hospitals, party: Participant) -> None:
    def tried(rate: float) -> Offer:
        return offer_with(hospitals, lambda settings: settings["local"].update(learning_rate=rate))

    for number in range(5):
        assert reply(hospitals, party, tried(0.1 + number), "trial")
    assert len(party._parts) == 2
    question = request(tried(0.1), 0).to_bytes(question_key(hospitals.folder / "server"))
    with pytest.raises(SpecificationRefused, match="has not accepted"):
        party.answer(question)
