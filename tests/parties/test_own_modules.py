"""Modules of one's own among parties: each builds the one that it allows, and it has to be the server's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from incrowd import Parties, Private
from incrowd.errors import DataError
from incrowd.federation import Federation
from incrowd.learning import Model
from incrowd.parties.frames import read_refusal
from incrowd.parties.keys import question_key
from incrowd.parties.network import offer_of
from incrowd.parties.offer import Offer, module_of
from incrowd.runs.work import ClientWork
from tests.parties.members import ALLOW, COLUMNS, Hospitals, MemberLine, settings_text
from tests.parties.test_server import run_of

NET = (
    "import torch\nfrom torch import nn\n\ndef net(width=3, frozen=0.5):\n"
    "    first = nn.Linear(4, width)\n    nn.init.constant_(first.weight, frozen)\n    nn.init.zeros_(first.bias)\n"
    "    last = nn.Linear(width, 2)\n    nn.init.constant_(last.weight, 0.1)\n    nn.init.zeros_(last.bias)\n"
    "    return nn.Sequential(first.requires_grad_(False), nn.Tanh(), last)\n"
)


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    made = Hospitals(tmp_path)
    (tmp_path / "own_net.py").write_text(NET)
    text = settings_text(here=False)
    (tmp_path / "there.toml").write_text(text.replace("[local]", '[model]\nmodule = "own_net:net"\n[local]'))
    for name in made.names:
        allow(made, name, 'modules = ["own_net:net"]\n')
    return made


@pytest.fixture
def line(hospitals: Hospitals) -> Iterator[MemberLine]:
    made = MemberLine(hospitals)
    yield made
    made.close()


def allow(hospitals: Hospitals, name: str, more: str) -> None:
    own = f'file = "{name}.csv"\nfolder = ".."\nlabel = "back"\nclasses = ["no", "yes"]\n'
    hospitals.state(name, data=own, columns=COLUMNS, allow=ALLOW + more)


@pytest.mark.slow
def test_a_module_that_is_allowed_by_name_is_built_by_each(hospitals: Hospitals, line: MemberLine) -> None:
    assert hospitals.server(say=lambda _: None).train_over(line, run_of(hospitals))["rounds"] == 3


def test_a_module_that_is_not_allowed_is_not_even_imported(hospitals: Hospitals, line: MemberLine) -> None:
    allow(hospitals, "birch", 'modules = ["other:net"]\n')
    with pytest.raises(DataError, match="birch does not: own_net:net is not among the modules"):
        hospitals.server(say=lambda _: None).train_over(line, run_of(hospitals))


def test_a_module_with_another_frozen_part_is_not_trained(hospitals: Hospitals, line: MemberLine) -> None:
    run = run_of(hospitals)
    assert isinstance(run.work, ClientWork)
    offer = offer_of(run.work)
    other = {**offer.settings, "module": {**offer.settings["module"], "frozen": "0" * 64}}
    changed = Offer.of_plan(offer.plan, size=offer.size, columns=offer.columns, settings=other, parties=offer.parties)
    question = changed.to_bytes(question_key(hospitals.folder / "server"))
    line.push([1], question, 1.0)
    [(_, answer)] = line.pull(["message 0"], 10_000)
    key = hospitals.member("amber").identity.key.public_key()
    assert "its frozen part is" in str(read_refusal(answer, question=question, key=key))


@pytest.mark.slow
def test_a_program_can_hand_over_a_module_that_each_party_has(hospitals: Hospitals, line: MemberLine) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 3), nn.Linear(3, 2)
    for layer, value in ((first, 0.5), (last, 0.1)):
        nn.init.constant_(layer.weight, value)
        nn.init.zeros_(layer.bias)
    module = nn.Sequential(first.requires_grad_(False), nn.Tanh(), last)
    columns = {"age": {"range": [0, 120]}, "dose": {"range": [0, 10]}, "sex": {"levels": ["f", "m"]}}
    data = Parties(
        federation="given",
        enrolled=str(hospitals.folder / "enrolled"),
        label="back",
        classes=("no", "yes"),
        columns=columns,
    )
    federation = Federation(module, data, privacy=Private(epsilon=50.0, delta=1e-5, rounds=2))
    run = federation.run_in(hospitals.folder / "given")
    assert hospitals.server(say=lambda _: None).train_over(line, run)["rounds"] == 2


def test_what_is_frozen_tells_modules_apart_and_what_is_trained_does_not() -> None:
    one, other = (nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)) for _ in range(2))
    assert module_of(Model(one)) != module_of(Model(other))
    other[0].load_state_dict(one[0].state_dict())
    assert module_of(Model(one)) == module_of(Model(other))
