"""A server of real parties over a SuperLink that it starts: `incrowd flower serve`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from incrowd.flower.grid import GridLink
from incrowd.flower.superlink import PORT, SuperLink
from incrowd.parties import server
from incrowd.parties.keys import LOOPBACK
from incrowd.parties.server import check_trained, enrolments, evaluate_over, of_parties
from incrowd.runs.data_config import Parties
from incrowd.runs.evaluation import EvaluationConfig
from incrowd.runs.folder import Summary
from incrowd.runs.run import Run
from incrowd.types import Tracker

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from incrowd.federation import Federation


@dataclass(frozen=True, kw_only=True)
class PartyServer(server.PartyServer):
    """The same server, on a port of the loopback address.

    Parties on other machines come through nginx: see `incrowd.flower.proxy`.
    """

    port: int = PORT

    def train(self, run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train a run to its end, as `Run.train`."""
        self.check_run(run)
        with self.link(of_parties(run.config)) as link:
            return self.train_over(link, run, watchers)

    def train_on(self, grid: "Grid", run: Run, watchers: Sequence[Tracker] = ()) -> Summary:
        """Train a run to its end in a server app, with the parties of a SuperLink that somebody else runs."""
        self.check_run(run)
        return self.train_over(GridLink(grid, enrolments(of_parties(run.config))), run, watchers)

    def try_out(self, federation: "Federation") -> dict[str, str]:
        """See `try_over`."""
        with self.link(of_parties(federation.settings)) as link:
            return self.try_over(link, federation)

    def evaluate(self, run: Run, wanted: EvaluationConfig) -> Summary:
        """Score a run's model on its parties' examples: see `incrowd.parties.server.evaluate`."""
        check_trained(run)
        with self.link(of_parties(run.config)) as link:
            return evaluate_over(self, link, run, wanted)

    def link(self, data: Parties) -> SuperLink:
        """The transport to the enrolled parties."""
        self.say(
            f"listening on {LOOPBACK}:{self.port} alone: parties elsewhere come through nginx (incrowd flower proxy)"
        )
        return SuperLink(self.keys / "serving", enrolments(data), keys=self.keys, port=self.port)
