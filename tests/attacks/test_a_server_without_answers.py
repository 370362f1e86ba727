"""Attack: a server that nobody answers goes on to its last round, releases noise and spends everything.

One that was put back from a copy asks questions that its parties refuse. Each test has a control: the honest run ends,
and a server that does not look goes on.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from incrowd.errors import RoundUnanswered
from incrowd.federation import Federation
from incrowd.flower.serve import PartyServer
from incrowd.parties.asking import UNANSWERED, Attendance, Patience
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.sampling import Poisson
from incrowd.privacy.release import PrivateRun
from incrowd.runs.folder import Record, database_in
from tests.command import Command, Finished
from tests.parties.members import Hospitals, MemberLine, settings_text
from tests.parties.nodes import PlainLine, VirtualClock
from tests.parties.parties import MODEL, RANDOMNESS, network_of, offer_for, plan_of, zeros

pytestmark = pytest.mark.watched

ROUNDS = 6
PRIVACIES = {
    "clients": f"epsilon = 50.0\ndelta = 1e-5\nrounds = {ROUNDS}\n",
    "silos": (f'unit = "record"\nepsilon = 40.0\ndelta = 1e-3\nrounds = {ROUNDS}\nrecords = 30\nclip_norm = 1.0\n'),
}


class World:
    """A server of three parties, in a folder that can be put back from a copy."""

    def __init__(self, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, incrowd: Command) -> None:
        self.hospitals = Hospitals(folder)
        self.line = MemberLine(self.hospitals)
        self.folder, self._incrowd = folder, incrowd
        text = settings_text(here=False, privacy=PRIVACIES[kind])
        (folder / "there.toml").write_text(text.replace('randomness = "seeded"\nseed = 3\n', ""))
        if kind == "silos":
            for name in self.hospitals.names:
                self.hospitals.state(
                    name, more='unit = "record"\nrecords = 30\n', allow="epsilon = 80.0\ndelta = 1e-3\n"
                )
        monkeypatch.setattr(PartyServer, "link", lambda *_, **__: nullcontext(self.line))
        brief = PartyServer.__init__
        patience = Patience(timeout=30, again=5, clock=VirtualClock())
        monkeypatch.setattr(
            PartyServer, "__init__", lambda self, **given: brief(self, **given | {"patience": patience})
        )

    def serve(self) -> Finished:
        keys, out = str(self.folder / "server"), str(self.folder / "out")
        return self._incrowd("flower", "serve", str(self.folder / "there.toml"), "--keys", keys, "--out", out)

    def rounds(self, number: int) -> None:
        """Train so many rounds, and stop."""

        class Stops:
            def start(self, *_: object) -> None: ...
            def end(self, *_: object) -> None: ...
            def round(self, record: Record) -> None:
                if record.round + 1 == number:
                    raise KeyboardInterrupt

        run = Federation.from_settings(self.folder / "there.toml").run_in(self.folder / "out")
        with pytest.raises(KeyboardInterrupt):
            self.hospitals.server(say=lambda _: None).train_over(self.line, run, [Stops()])

    def done(self) -> int:
        with database_in(self.folder / "out") as database:
            return len(database.rounds())

    def copy(self, *, back: bool) -> None:
        """Put a copy of the server's folders aside, or back in their place."""
        for folder in (self.folder / "out", Path(os.environ["INCROWD_STATE"])):
            aside = folder.with_name(f"{folder.name}.copy")
            source, target = (aside, folder) if back else (folder, aside)
            shutil.rmtree(target, ignore_errors=True)
            if source.exists():  # a server of silos has no ledger, so no state
                shutil.copytree(source, target)


@pytest.fixture(params=PRIVACIES)
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, incrowd: Command
) -> Iterator[World]:
    made = World(tmp_path, request.param, monkeypatch, incrowd)
    yield made
    made.line.close()


@pytest.mark.parametrize(
    "world", ["clients"], indirect=True
)  # silos answer again, and a server of theirs adds no noise
def test_a_server_that_was_put_back_from_a_copy_stops_and_spends_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.rounds(2)
    world.copy(back=False)
    world.rounds(4)
    world.copy(back=True)
    for _ in range(2):  # however often it is started again
        refused = world.serve()
        assert (refused.status, world.done()) == (1, 3), refused.err  # the third round is asked as it was before
        assert "noise alone is not released" in refused.err
    monkeypatch.setattr(Attendance, "check_answered", lambda *_, **__: None)  # the control: who does not look goes on
    assert (world.serve().status, world.done()) == (0, ROUNDS)


def test_a_server_whose_parties_are_there_goes_on_and_one_whose_parties_have_gone_does_not(world: World) -> None:
    world.rounds(2)
    world.line.gone.update(world.hospitals.names)
    assert world.serve().status != 0
    assert world.done() == 2
    world.line.gone.clear()
    assert (world.serve().status, world.done()) == (0, ROUNDS)


def test_of_drawn_parties_so_many_silent_rounds_are_noise_and_no_more() -> None:
    plan = plan_of(rounds=40, sampling=Poisson)
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    run = PrivateRun(plan, ledger=ledger, randomness=RANDOMNESS, size=MODEL.size)
    silent = PlainLine({number: lambda _: b"" for number in range(3)})
    network = network_of(silent, offer_for(plan), patience=Patience(timeout=1, clock=VirtualClock()))
    sizes = list[int]()

    def train() -> None:
        for number in range(40):
            sizes.append(run.cohort(number).size)
            opened = run.round(number)
            opened.ask(network.trainer(zeros()))
            assert np.isfinite(opened.release().mean).all()

    with pytest.raises(RoundUnanswered):
        train()
    asked = [size for size in sizes if size]
    assert len(asked) <= UNANSWERED
    assert ledger.charges() == (len(sizes) - 1, 0)
