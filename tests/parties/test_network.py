"""A round whose sum comes from nodes is the round of one machine, to the last bit."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import load_file

from incrowd.errors import ConfigError
from incrowd.flower.simulation import BLOCK, Block, Simulation, Stock
from incrowd.learning import ClientTensors
from incrowd.parties.asking import Patience
from incrowd.parties.frames import Place, sealed
from incrowd.parties.network import Network, Node, in_blocks, offer_of
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.run import Run
from tests.parties.nodes import PlainLine, VirtualClock
from tests.runs.small import SEEDED, SMALL, clients_of, seeded

SERVER, BLOCKS = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()

KINDS = {
    "central": (),
    "fixed": ("privacy.clip={kind='fixed',clip_norm=0.5}",),
    "a layer each": ("privacy.clip={kind='per-layer',clip_norms=[0.5]}",),
    "each number": ("privacy.clip={kind='elementwise',limit=0.01}",),
    "poisson": ("privacy.sampling=poisson", "privacy.cohort=6", "privacy.epsilon=20"),
    "quantile": ("privacy.clip={kind='quantile',clip_norm=0.1,bit_noise=4}", "privacy.epsilon=20"),
    "local": ("privacy.noise_by=party", "privacy.sampling=everyone"),
    "correlated": ("privacy.noise=correlated", "privacy.groups=3"),
}


def in_two_blocks(run: Run, *, change: Callable[[bytes], bytes] = lambda frame: frame) -> tuple[Network, PlainLine]:
    """A network of two blocks in this process, whose answers may be changed on their way."""
    work = clients_of(run)
    offer = offer_of(work)
    stock = Stock.of(work.engine, ClientTensors.of(work.data), offer, work.randomness)
    blocks = [Block(stock, server=SERVER.public_key(), key=BLOCKS) for _ in range(2)]
    line = PlainLine({5: lambda frame: change(blocks[0].answer(frame)), 7: blocks[1].answer})
    nodes = [Node(id=number, party=BLOCK, key=BLOCKS.public_key(), block=True) for number in line.nodes]
    patience = Patience(timeout=10, clock=VirtualClock())
    return Network(transport=line, offer=offer, deal=in_blocks(nodes), key=SERVER, patience=patience), line


def weights(folder: Path) -> dict[str, list[float]]:
    return {name: array.tolist() for name, array in load_file(folder / "model.safetensors").items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_release_the_model_of_one_machine(kind: str, tmp_path: Path) -> None:
    here, there = (Run.create(seeded(*KINDS[kind]), tmp_path / name) for name in ("here", "there"))
    expected = here.train()
    network, line = in_two_blocks(there)
    found = there.asking(trainers=network.trainer).train()
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    assert {name: found[name] for name in ("epsilon", "accuracy", "rounds", "statement")} == {
        name: expected[name] for name in ("epsilon", "accuracy", "rounds", "statement")
    }
    assert len(line.asked) == 8


def test_a_run_goes_on_elsewhere(tmp_path: Path) -> None:
    Run.create(seeded(), tmp_path / "here").train()
    run = Run.create(seeded(), tmp_path / "there")
    network, _ = in_two_blocks(run)
    rounds = iter(range(2))

    class Stop:
        def start(self, settings: object, past: object) -> None: ...
        def round(self, record: object) -> None:
            if next(rounds, None) is None:
                raise KeyboardInterrupt

        def end(self, summary: object) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        run.asking(trainers=network.trainer).train([Stop()])
    Run.open(tmp_path / "there").train()
    assert weights(tmp_path / "there") == weights(tmp_path / "here")


def test_an_answer_that_fails_counts_as_zero_and_the_denominator_stays(tmp_path: Path) -> None:
    run = Run.create(seeded(), tmp_path / "run")
    network, _ = in_two_blocks(run, change=_too_long)
    work = clients_of(run)
    with Ledger.in_memory(budget=work.plan.budget, relation=work.plan.relation) as ledger:
        start = work.algorithm(ledger, label="x").init().weights
    clip = work.plan.config.clip
    found = network.part(start, range(12), round=0, clip=clip)  # type: ignore[arg-type]  # it is no median
    other = in_two_blocks(run)[0].part(start, range(6, 12), round=0, clip=clip)  # type: ignore[arg-type]  # it is no median
    assert np.array_equal(found.total.steps, other.total.steps)
    assert (found.observed.contributions, found.observed.dropped) == (12, 6)


def _too_long(frame: bytes) -> bytes:
    """A block's own answer to this round, a million times too long."""
    size = 650
    body, head = np.full(size, 2**30, "<i4").tobytes(), {"unclipped": 0, "dropped": 0}
    plan = frame[frame.index(b'"plan":"') + 8 :][:64].decode()
    return sealed("answer", Place(plan=plan, round=0, party=BLOCK), head, body, key=BLOCKS)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [(("privacy.clip={kind='median'}",), "clip"), (("run.diagnose=true",), "diagnose")],
)
def test_what_cannot_be_known_elsewhere_is_refused_before_anything_is_spent(
    overrides: Sequence[str], field: str, tmp_path: Path
) -> None:
    run = Run.create(seeded(*overrides), tmp_path / "run")
    with pytest.raises(ConfigError, match=field):
        Simulation(workers=1).train(run)
    with clients_of(run).payer.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert ledger.charges() == (0, 0)


@pytest.mark.slow
def test_flower_releases_the_model_of_one_machine(tmp_path: Path) -> None:
    Run.create(seeded(), tmp_path / "here").train()
    sets = [word for override in (*SMALL, *SEEDED) for word in ("--set", override)]
    words = ["flower", "simulate", *sets, "--workers", "2", "--blocks", "3", "--out", str(tmp_path / "there"), "--json"]
    done = subprocess.run([sys.executable, "-m", "incrowd", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 4
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
