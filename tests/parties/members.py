"""Hospitals with tables of their own: their files, as their owners would fill them in, and a way to them in memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from incrowd.errors import IncrowdError
from incrowd.parties.asking import Patience
from incrowd.parties.folder import PartyFolder, new_folder
from incrowd.parties.keys import new_authority, new_invitation, new_server_certificate
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PARTY_FILE
from incrowd.parties.server import PartyServer
from tests.parties.nodes import VirtualClock

NAMES = ("amber", "birch", "cedar")
ROWS = 30
COLUMNS = 'age = {range = [0, 120]}\ndose = {range = [0, 10]}\nsex = {levels = ["f", "m"]}\n'
ALLOW = "epsilon = 100.0\ndelta = 1e-5\n"


def write_tables(folder: Path, names: tuple[str, ...] = NAMES) -> None:
    """NAME.csv for each, and all of them in all.csv, with whose each row is."""
    generator = np.random.default_rng(0)
    together = ["hospital,age,dose,sex,back"]
    for name in names:
        rows = []
        for _ in range(ROWS):
            age, dose, sex = generator.integers(20, 90), generator.uniform(0, 10), generator.choice(["f", "m"])
            back = "yes" if (age - 55) / 20 + (dose - 5) / 3 + generator.normal() > 0 else "no"
            rows.append(f"{age},{dose:.2f},{sex},{back}")
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,sex,back", *rows]) + "\n")
        together += [f"{name},{row}" for row in rows]
    (folder / "all.csv").write_text("\n".join(together) + "\n")


def settings_text(*, here: bool, rounds: int = 3, **rest: str) -> str:
    """The settings, of parties elsewhere, or of the same table in one place."""
    where = 'name = "table"\nfile = "all.csv"\nclient = "hospital"\nclients = 3\n'
    if not here:
        where = 'name = "parties"\nfederation = "hearts"\nenrolled = "enrolled"\n'
    privacy = rest.get("privacy", f"epsilon = 50.0\ndelta = 1e-5\nrounds = {rounds}\n")
    return (
        f'[data]\n{where}label = "back"\nclasses = ["no", "yes"]\n[data.columns]\n{rest.get("columns", COLUMNS)}'
        f"[local]\nlearning_rate = 0.5\nepochs = 2\nbatch_size = 7\n[privacy]\n{privacy}"
        f'[run]\nrandomness = "seeded"\nseed = 3\n{rest.get("more", "")}'
    )


def party_text(name: str, *, columns: str = COLUMNS, allow: str = ALLOW, data: str = "", more: str = "") -> str:
    """What the owner of a table fills in."""
    seed = 'randomness = "seeded"\nseed = 3\n' + more
    own = f'file = "../{name}.csv"\nlabel = "back"\nclasses = ["no", "yes"]\n'
    return f'name = "{name}"\n{seed}[data]\n{data or own}[data.columns]\n{columns}[allow]\n{allow}'


@dataclass
class Hospitals:
    """A server's folder and three parties' folders, enrolled, on one disk."""

    folder: Path
    names: tuple[str, ...] = NAMES

    def __post_init__(self) -> None:
        write_tables(self.folder, self.names)
        new_authority(self.folder / "server")
        new_server_certificate(self.folder / "server", ["127.0.0.1"])
        new_invitation(self.folder / "server", "127.0.0.1:9")
        (self.folder / "enrolled").mkdir()
        for name in self.names:
            new_folder(self.folder / name, name, self.folder / "server" / "invitation.json")
            (self.folder / "enrolled" / f"{name}.pub").write_bytes((self.folder / name / f"{name}.pub").read_bytes())
            self.state(name)
        (self.folder / "here.toml").write_text(settings_text(here=True))
        (self.folder / "there.toml").write_text(settings_text(here=False))

    def state(self, name: str, **rest: Any) -> None:
        """Let an owner state something else."""
        (self.folder / name / PARTY_FILE).write_text(party_text(name, **rest))

    def member(self, name: str) -> PartyFolder:
        return PartyFolder.read(self.folder / name)

    def server(self, **rest: Any) -> PartyServer:
        patience = Patience(timeout=30, again=5, clock=VirtualClock())
        return PartyServer(keys=self.folder / "server", patience=patience, **rest)


@dataclass(frozen=True)
class After:
    """A tracker that does something after each round."""

    act: Callable[[Any], object]

    def start(self, settings: object, past: object) -> None: ...
    def end(self, summary: object) -> None: ...
    def round(self, record: Any) -> None:
        self.act(record)


@dataclass
class MemberLine:
    """A way to members in memory: those who are there answer at once."""

    hospitals: Hospitals
    gone: set[str] = field(default_factory=set)
    parties: dict[str, Participant] = field(default_factory=dict)
    waiting: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    failed: list[IncrowdError] = field(default_factory=list)

    @property
    def nodes(self) -> dict[str, int]:
        """See `SuperLink.nodes`."""
        names = self.hospitals.names
        return {name: number for number, name in enumerate(names, 1) if name not in self.removed}

    def present(self) -> frozenset[str]:
        """See `SuperLink.present`."""
        return frozenset(self.nodes) - self.gone

    def remove(self, name: str) -> None:
        """See `SuperLink.remove`."""
        self.removed.add(name)

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """See `SuperLink.push`."""
        names: Mapping[int, str] = {number: name for name, number in self.nodes.items()}
        owners = {}
        for node in nodes:
            number = f"message {len(self.asked)}"
            self.asked.append((names[node], content))
            owners[number] = node
            if names[node] in self.present() and (answer := self._answer(names[node], content)) is not None:
                self.waiting[number] = answer
        return owners

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """See `SuperLink.pull`."""
        for number in asked:
            if number in self.waiting:
                yield number, self.waiting.pop(number)

    def _answer(self, name: str, content: bytes) -> bytes | None:
        if name not in self.parties:
            self.parties[name] = self.hospitals.member(name).open()
        try:
            return self.parties[name].reply(content)
        except IncrowdError as error:
            self.failed.append(error)
            return None

    def close(self) -> None:
        """All parties' processes end."""
        for party in self.parties.values():
            party.close()
        self.parties.clear()


class Stops:
    """A tracker that ends the server's process after a round."""

    def __init__(self, after: int = 0) -> None:
        self.after = after

    def start(self, *_: object) -> None: ...
    def end(self, *_: object) -> None: ...
    def round(self, record: Any) -> None:
        if record.round == self.after:
            raise KeyboardInterrupt
