"""The same federation beyond one machine, on Flower (`flwr`): `incrowd flower` and `incrowd party`.

| module       | holds                                                                                 |
| ------------ | ------------------------------------------------------------------------------------- |
| `fleet`      | everything that is known here of Flower's inside, but for what `simulation` knows      |
| `superlink`  | the transport to parties: a SuperLink that is started, watched and asked               |
| `serve`      | a run whose parties are asked over it: `incrowd flower serve`                          |
| `node`       | a party's process, which stays and answers questions: `incrowd flower join`            |
| `proxy`      | nginx in front: the configuration that lets enrolled parties through, and no more      |
| `child`      | processes that end with the one that started them                                      |
| `simulation` | a run whose cohorts, or silos, answer on Flower's simulation engine (Ray)              |
| `strategy`   | a strategy of Flower's, made private, over stock nodes                                 |
| `accountant` | a ledger behind the accountant that Flower's own strategies ask                        |
| `new`        | an app of Flower's with such a strategy, written for its user to change                |

The parties themselves, and what they are asked, know nothing of Flower: see `incrowd.parties`.
"""

import os
import typing

from incrowd._lazy import lazily as _lazily

if typing.TYPE_CHECKING:
    from incrowd.flower.accountant import LedgerAccountant
    from incrowd.flower.serve import PartyServer
    from incrowd.flower.simulation import Simulation
    from incrowd.flower.strategy import PrivateStrategy, private

__all__ = ["LedgerAccountant", "PartyServer", "PrivateStrategy", "Simulation", "private"]

__getattr__ = _lazily(
    __name__,
    {
        "incrowd.flower.accountant": ("LedgerAccountant",),
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
