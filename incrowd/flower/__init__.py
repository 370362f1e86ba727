"""Federations beyond one machine, on Flower (`flwr`): `incrowd flower` and `incrowd party`.

| module       | holds                                                                                 |
| ------------ | ------------------------------------------------------------------------------------- |
| `fleet`      | the calls to Flower's internal APIs                                                    |
| `grid`       | messages as bytes, and a transport over the `Grid` of a server app                     |
| `superlink`  | the transport to parties: a SuperLink in a process that ends with ours                 |
| `serve`      | a run with parties over it: `incrowd flower serve`                                     |
| `node`       | a party's process, which stays and answers questions: `incrowd flower join`            |
| `proxy`      | nginx in front: the configuration that admits enrolled parties alone                   |
| `simulation` | a run on Flower's simulation engine (Ray)                                              |
| `strategy`   | a strategy of Flower's, made private, over stock nodes                                 |

`incrowd.parties` holds the parties and their messages, without Flower.
"""

import os
import typing
from importlib.util import find_spec

from incrowd._lazy import lazily as _lazily
from incrowd.errors import ConfigError

if typing.TYPE_CHECKING:
    from incrowd.flower.serve import PartyServer
    from incrowd.flower.simulation import Simulation
    from incrowd.flower.strategy import PrivateStrategy, private

__all__ = ["PartyServer", "PrivateStrategy", "Simulation", "private"]

__getattr__ = _lazily(
    __name__,
    {
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
"""Switches off telemetry and the look for updates; flwr and Ray read both on import."""

os.environ.update(QUIET)


def need_flower() -> None:
    """Raise an error that names the missing package."""
    for package in ("flwr", "ray", "cryptography"):
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy="pip install 'incrowd[flower]' brings it")
