"""A run whose cohorts are trained by blocks of simulated clients on Flower's simulation engine (Ray)."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd import _validate
from incrowd.errors import ConfigError
from incrowd.flower._needed import need_flower
from incrowd.flower.actors import ActorLine
from incrowd.flower.blocks import BLOCK, Shelf, Stock, Stocked
from incrowd.flower.network import Network, Node, in_blocks
from incrowd.flower.offered import offer_of
from incrowd.flower.rounds import Patience
from incrowd.flower.silos import SiloNetwork, SiloStock, fingerprint_of
from incrowd.learning.engine import EngineTrainer
from incrowd.learning.store import ClientTensors
from incrowd.runs.data_config import Parties
from incrowd.runs.folder import Summary
from incrowd.runs.run import Run
from incrowd.runs.silo_work import SiloWork
from incrowd.runs.sources import processors
from incrowd.runs.work import ClientWork
from incrowd.types import Tracker


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """How much of the machine is used: so many Ray workers of one thread each, and as many blocks a round unless said.

    `gpus` is the share of an accelerator that each worker has. `address` is that of a Ray cluster; without one Ray is
    started here, for this run alone, and stopped after it.

    Guarantee: the run's folder, ledger, statement and result are those of a run on this machine, and under seeded
    randomness the released model is, too, to the last bit on one kind of processor: whichever way its clients are
    dealt to blocks, and however many workers there are.

    Each silo is a node, and writes to its own ledger in the run's folder, so silos stay on one machine.

    Edge cases: the median clip and single contributions (`run.diagnose`) are refused, before Ray is started.
    """

    workers: int | None = None
    blocks: int | None = None
    gpus: float = 0.0
    address: str | None = None
    patience: Patience = field(default_factory=lambda: Patience(timeout=3600.0, poll=1.0, all_needed=True))

    def __post_init__(self) -> None:
        for name in ("workers", "blocks"):
            if getattr(self, name) is not None:
                _validate.count(**{name: getattr(self, name)})
        _validate.non_negative(gpus=self.gpus)

    def train(self, run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train a run to its end, from wherever it stands, as `Run.train`."""
        need_flower()
        if isinstance(run.config.data, Parties):
            remedy = "their data are not here to be simulated: `incrowd flower serve` asks them"
            raise ConfigError(field="data.name", value="parties", remedy=remedy)
        if isinstance(run.work, SiloWork):
            return self._silos(run, run.work, watchers)
        if not isinstance(run.work, ClientWork):
            remedy = 'networks know silos that noise their own steps: use "party", or train without Flower'
            raise ConfigError(field="privacy.noise_by", value=run.work.plan.noise_by, remedy=remedy)
        return self._clients(run, run.work, watchers)

    def _clients(self, run: Run, work: ClientWork, watchers: Sequence[Tracker]) -> Summary:
        offer = offer_of(work)
        # What cannot be trained elsewhere is refused before Ray is started.
        run.trained_by(partial(EngineTrainer, work.engine, randomness=work.randomness))
        server, blocks = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        stock = Stock.of(work.engine, ClientTensors.of(work.data), offer, work.randomness)
        number = self.blocks or self._workers

        def main(line: ActorLine) -> Summary:
            nodes = [Node(id=one, party=BLOCK, key=blocks.public_key(), block=True) for one in line.nodes]
            patience = replace(self.patience, clock=line)
            network = Network(line=line, offer=offer, deal=in_blocks(nodes), key=server, patience=patience)
            return run.trained_by(network.trainer).train(watchers)

        return self._in_flower(main, stock, server=server, key=blocks, nodes=number)

    def _silos(self, run: Run, work: SiloWork, watchers: Sequence[Tracker]) -> Summary:
        if self.address is not None:
            remedy = "silos keep their ledgers in the run's folder: leave it out, and they train on this machine"
            raise ConfigError(field="address", value=self.address, remedy=remedy)
        server, key = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
        names = list(work.names)

        def main(line: ActorLine) -> Summary:
            nodes = [
                Node(id=one, party=name, key=key.public_key(), block=True)
                for one, name in zip(line.nodes, names, strict=True)
            ]
            network = SiloNetwork(
                line=line,
                plan=fingerprint_of(work),
                size=work.model.size,
                silos=nodes,
                key=server,
                patience=replace(self.patience, clock=line),
            )
            return run.answered_by(network.answers).train(watchers)

        stock = SiloStock(work=work, folder=run.folder)
        return self._in_flower(main, stock, server=server, key=key, nodes=len(names))

    def _in_flower(
        self,
        main: Callable[[ActorLine], Summary],
        stock: Stocked,
        *,
        server: Ed25519PrivateKey,
        key: Ed25519PrivateKey,
        nodes: int,
    ) -> Summary:
        """What `main` gives, with what workers make of the stock as ClientApps in Flower's actors."""
        from flwr.clientapp import ClientApp

        clients = ClientApp()
        shelf = Shelf(server=server.public_key().public_bytes_raw(), key=key.private_bytes_raw())
        clients.train("incrowd")(shelf)
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what is wrong is raised here
        with self._ray(), ActorLine(clients, nodes=nodes, gpus=self.gpus) as line:
            shelf.fill(stock)
            return main(line)

    @contextmanager
    def _ray(self) -> Iterator[None]:
        """Ray, for as long as the `with` block lasts, unless the program has one already."""
        import ray

        if ray.is_initialized():
            yield
            return
        found = os.pathsep.join([*sys.path, *filter(None, [os.environ.get("PYTHONPATH")])])
        where = {"num_cpus": self._workers} if self.address is None else {"address": self.address}
        ray.init(
            **where,
            runtime_env={"env_vars": {"PYTHONPATH": found}},
            include_dashboard=False,
            log_to_driver=False,
            configure_logging=False,
        )
        try:
            yield
        finally:
            ray.shutdown()

    @property
    def _workers(self) -> int:
        return self.workers or processors()
