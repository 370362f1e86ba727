"""The same federation beyond one machine, on Flower (`flwr`): `incrowd flower` and `incrowd party`.

| module         | holds                                                                               |
| -------------- | ----------------------------------------------------------------------------------- |
| `wire`         | what goes over the network: signed, of known length, checked before it is decoded   |
| `offer`        | what a server wants to learn: the plan, and how clients train; it has a fingerprint |
| `extent`       | how much there is to reckon in an offer, before anything of it is reckoned          |
| `offered`      | what an offer says beside its plan, and what a party may read in it                 |
| `history`      | what a server has asked, round by round, which goes along with every question       |
| `rounds`       | asks nodes all at once, and takes the first answer of each                          |
| `attendance`   | who is waited for, and who is not, because it stays away                            |
| `network`      | who trains is a network: the round's sum comes from nodes                           |
| `work`         | what a node does in a round: its clients' part of the sum                           |
| `evaluation`   | a model that is scored on parties' own examples                                     |
| `silos`        | silos that are asked over a network                                                 |
| `blocks`       | nodes that are blocks of simulated clients, on Flower's simulation engine           |
| `actors`       | Flower's actors on Ray as the way to nodes                                          |
| `simulation`   | a run whose cohorts are trained, or whose silos answer, on that engine              |
| `policy`       | what the owner of a party's data allows any server                                  |
| `memory`       | what a party was asked and what it answered, on its own disk                        |
| `brake`        | what holds a party back, whatever it trains: memory, history, order, a day's limit  |
| `party`        | a real party: its own ledger, its own policy, one answer a round                    |
| `party_file`   | what the owner of a party's data states: `party.toml`                               |
| `own_examples` | a party's own data as they are stated, and what trains on them for an offer         |
| `join`         | a party in its folder, and its process: `incrowd flower join`                       |
| `given`        | what a party has given, for its owner: `incrowd party show`                         |
| `silo_offer`   | what a server offers silos: a plan for the records of each                          |
| `silo_party`   | a real silo, which noises for itself, on its own ledger                             |
| `silo_account` | the account of one plan on the ledger that a silo keeps for all                     |
| `silo_claims`  | what the claims and answers of silos can be, recomputed by the server               |
| `silo_server`  | silos as a server sees them: it asks for rounds, and at the end for claims          |
| `silo_work`    | a run whose silos are real parties, as a run sees it                                |
| `keys`         | who the server is to the parties, and who a party is to the server                  |
| `invitation`   | what a server gives to every party: where it is, and how to know it                 |
| `meeting`      | who takes part in a run, who does not, and why                                      |
| `serve`        | a run whose clients, or silos, are real parties: `incrowd flower serve`             |
| `superlink`    | the server's side of a deployment: a SuperLink that is started and watched          |
| `questions`    | what the server waits for, through all lives of a SuperLink and of parties          |
| `proxy`        | nginx before it: the configuration that lets enrolled parties through, and no more  |
| `node`         | a party's process: it stays, and answers questions                                  |
| `fleet`        | all that is known here of Flower's inside, but for what `actors` knows              |
| `child`        | processes that end when the one that started them does                              |
| `accountant`   | a ledger behind the accountant that Flower's own strategies ask                     |
| `strategy`     | a strategy of Flower's, made private, over stock nodes                              |
| `wrapped`      | what such a strategy asks, and what it does with a mean, without meeting a node     |
| `new`          | an app of Flower's with such a strategy, written for its user to change             |
| `arrays`       | arrays as Flower carries them, read without trusting who sent them                  |
"""

import os
import typing

from incrowd._lazy import lazily as _lazily

if typing.TYPE_CHECKING:
    from incrowd.flower.accountant import LedgerAccountant
    from incrowd.flower.join import Member
    from incrowd.flower.serve import PartyServer
    from incrowd.flower.simulation import Simulation
    from incrowd.flower.strategy import PrivateStrategy, private

__all__ = ["LedgerAccountant", "Member", "PartyServer", "PrivateStrategy", "Simulation", "private"]

__getattr__ = _lazily(
    __name__,
    {
        "incrowd.flower.accountant": ("LedgerAccountant",),
        "incrowd.flower.join": ("Member",),
        "incrowd.flower.serve": ("PartyServer",),
        "incrowd.flower.simulation": ("Simulation",),
        "incrowd.flower.strategy": ("PrivateStrategy", "private"),
    },
)

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray warns of it otherwise
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on every system: Ray then keeps to the loopback address
}
"""Nothing is reported to anyone, and nobody is asked for updates. Both are read when flwr and Ray are imported."""

os.environ.update(QUIET)
