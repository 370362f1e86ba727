"""A transport of your own: a folder that a server and its parties both see, for hospitals with a file share alone.

Run: python examples/extensions/transport.py
"""

import csv
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

import incrowd
from incrowd.errors import IncrowdError
from incrowd.parties import PartyFolder, PartyServer
from incrowd.parties.folder import new_folder
from incrowd.parties.keys import new_authority, new_invitation, new_server_certificate, read_roster

COLUMNS = "age = {range = [0, 120]}\ndose = {range = [0, 10]}\n"


class SharedFolder:
    """The server's side: NAME/questions/NUMBER and NAME/answers/NUMBER, each written whole or not at all."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.nodes = folder, {name: number for number, name in enumerate(names, 1)}
        self.count, self.names = 0, dict[str, str]()
        for name in names:
            for kind in ("questions", "answers"):
                (folder / name / kind).mkdir(parents=True, exist_ok=True)

    def present(self) -> frozenset[str]:
        """The parties that looked into the folder in the last minute."""
        seen = {name: self.folder / name / "seen" for name in self.nodes}
        return frozenset(name for name, at in seen.items() if at.exists() and time.time() - at.stat().st_mtime < 60)

    def remove(self, name: str) -> None:
        """Ask a party no more."""
        del self.nodes[name]

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """Put one question to several parties."""
        names, owners = {number: name for name, number in self.nodes.items()}, dict[str, int]()
        for node in nodes:
            self.count += 1
            number = f"{os.getpid()}-{self.count}"
            self.names[number], owners[number] = names[node], node
            put(self.folder / names[node] / "questions" / number, content)
        return owners

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """The answers that have come; a longer one is empty."""
        for number in asked:
            path = self.folder / self.names[number] / "answers" / number
            if path.exists():
                answer = path.read_bytes() if path.stat().st_size <= longest else b""
                path.unlink()
                yield number, answer


def attend(party: PartyFolder, folder: Path, stop: threading.Event) -> None:
    """The party's side: answer every question in its folder until told to stop."""
    with party.attending() as participant:
        while not stop.wait(0.02):
            (folder / "seen").touch()
            for question in sorted((folder / "questions").iterdir()):
                if question.suffix:
                    continue
                with suppress(IncrowdError):  # the owner finds it in `incrowd party show`
                    put(folder / "answers" / question.name, participant.reply(question.read_bytes()))
                question.unlink()


def put(path: Path, content: bytes) -> None:
    """Write a file that others see whole."""
    path.with_suffix(".part").write_bytes(content)
    path.with_suffix(".part").rename(path)


def hospital(root: Path, name: str, rows: int = 200) -> PartyFolder:
    """A hospital with a table, keys, and rules of its own."""
    generator = np.random.default_rng(len(name) + ord(name[0]))
    age, dose = generator.integers(20, 90, rows), generator.uniform(0, 10, rows)
    back = np.where((age - 55) / 20 + (dose - 5) / 3 + generator.normal(size=rows) > 0, "yes", "no")
    with (root / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("age", "dose", "back"), *zip(age, dose.round(2), back, strict=True)])
    new_folder(root / name, name, root / "server" / "invitation.json")
    (root / name / "party.toml").write_text(
        f'name = "{name}"\nunit = "record"\nrecords = {rows}\n[data]\nfile = "../{name}.csv"\nlabel = "back"\n'
        f'classes = ["no", "yes"]\n[data.columns]\n{COLUMNS}[allow]\nepsilon = 2.0\ndelta = 1e-5\n'
    )
    (root / "enrolled" / f"{name}.pub").write_bytes((root / name / f"{name}.pub").read_bytes())
    return PartyFolder.read(root / name)


root = Path(sys.argv[1] if len(sys.argv) > 1 else "out/share")
new_authority(root / "server")
new_server_certificate(root / "server", ["127.0.0.1"])
new_invitation(root / "server", "127.0.0.1:9")  # nothing listens: the folder is the way
(root / "enrolled").mkdir()
names = ["amber", "birch", "cedar"]
hospitals = [hospital(root, name) for name in names]
stop, share = threading.Event(), SharedFolder(root / "share", names)
for party in hospitals:
    party.compared(read_roster(root / "enrolled"))  # as their owners did by telephone
attending = [
    threading.Thread(target=attend, args=(PartyFolder.read(party.folder), share.folder / party.folder.name, stop))
    for party in hospitals
]
for thread in attending:
    thread.start()
federation = incrowd.Federation.from_tables(
    {
        "data": {"name": "parties", "federation": "a share", "enrolled": str(root / "enrolled"), "label": "back"}
        | {"classes": ["no", "yes"], "columns": {"age": {"range": [0, 120]}, "dose": {"range": [0, 10]}}},
        "privacy": {
            "unit": "record",
            "noise_by": "parties",
            "records": 200,
            "epsilon": 2.0,
            "delta": 1e-5,
            "rounds": 5,
        },
        "server": {"learning_rate": 2.0},
        "run": {},
    }
)
try:
    found = PartyServer(keys=root / "server").train_over(share, federation.run_in(root / "run"))
    print(f"{found['rounds']} rounds over a folder, epsilon {found['epsilon']:.3f}; the server saw sums alone")
finally:
    stop.set()
    for thread in attending:
        thread.join()
