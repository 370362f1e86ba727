"""How much memory a party and a server take: `incrowd flower join` and `serve`, with training, on loopback.

python benchmarks/party_memory.py [--rows 2000] [--rounds 3] [--hidden 0,600,100] [--json]
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from harness import processes
from harness.results import markdown
from incrowd.federation import Federation
from incrowd.flower.serve import PartyServer
from incrowd.parties.folder import new_folder
from incrowd.parties.keys import new_authority, new_invitation, new_server_certificate
from incrowd.parties.policy import PARTY_FILE

NAMES = ("amber", "birch")
COLUMNS = "".join(f"x{number} = {{range = [0, 1]}}\n" for number in range(10))
MEANING = f'label = "y"\nclasses = ["no", "yes"]\n[data.columns]\n{COLUMNS}'


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000, help="of each party")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", default="0", help="widths of hidden layers; 0 for a linear model")
    parser.add_argument("--json", action="store_true", help="figures for a program")
    options = parser.parse_args()
    hidden = [int(width) for width in options.hidden.split(",") if int(width)]
    found = measure(options.rows, options.rounds, hidden)
    rows = [{"process": name, "MB at most": round(value / 1e6)} for name, value in found.items()]
    print(json.dumps({"most": found}) if options.json else "\n".join(markdown(rows)))


def measure(rows: int, rounds: int, hidden: list[int]) -> dict[str, float]:
    """The most that was resident of each process, after a run."""
    with tempfile.TemporaryDirectory(prefix="incrowd-bench-") as place, ExitStack() as stack:
        folder, port = Path(place), _free_port()
        os.environ["INCROWD_STATE"] = str(folder / "state")
        new_authority(folder / "keys")
        new_server_certificate(folder / "keys", ["127.0.0.1"])
        new_invitation(folder / "keys", f"127.0.0.1:{port}")
        (folder / "enrolled").mkdir()
        parties = {name: _party(folder, name, rows) for name in NAMES}
        for party in parties.values():
            stack.callback(party.kill)
        model = f'[model]\nkind = "mlp"\nhidden = {hidden}\n' if hidden else ""
        privacy = f"[local]\nbatch_size = 32\n[privacy]\nepsilon = 50.0\ndelta = 1e-5\nrounds = {rounds}\n"
        data = f'[data]\nname = "parties"\nfederation = "bench"\nenrolled = "enrolled"\n{MEANING}'
        (folder / "bench.toml").write_text(f"{data}{model}{privacy}[run]\n")
        run = Federation.from_settings(folder / "bench.toml").run_in(folder / "out")
        server = PartyServer(keys=folder / "keys", port=port)
        with server.link(run.config.data) as link:  # type: ignore[arg-type]  # it is with parties
            server.train_over(link, run)
            numbers = {"serve": os.getpid(), "its SuperLink": link.processes["superlink"]}
            numbers |= {f"join {name}": party.pid for name, party in parties.items()}
            return {name: processes.memory(number)["most"] for name, number in numbers.items()}


def _party(folder: Path, name: str, rows: int) -> "subprocess.Popen[bytes]":
    """A party with a table of its own, which has joined."""
    generator = np.random.default_rng(NAMES.index(name))
    table = [
        f"{','.join(f'{value:.3f}' for value in row)},{'yes' if row[0] > 0.5 else 'no'}"
        for row in generator.random((rows, 10))
    ]
    (folder / f"{name}.csv").write_text(
        "\n".join([",".join([*(f"x{number}" for number in range(10)), "y"]), *table]) + "\n"
    )
    enrolment = new_folder(folder / name, name, folder / "keys" / "invitation.json")
    (folder / "enrolled" / f"{name}.pub").write_text(enrolment.text())
    allow = "[allow]\nepsilon = 100.0\ndelta = 1e-5\n"
    (folder / name / PARTY_FILE).write_text(f'name = "{name}"\n[data]\nfile = "../{name}.csv"\n{MEANING}{allow}')
    return subprocess.Popen([sys.executable, "-m", "incrowd", "flower", "join", str(folder / name)])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
