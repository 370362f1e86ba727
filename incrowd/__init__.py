"""incrowd: learn one model from many parties without learning anything about any one of them.

The names are found when they are asked for, so that `import incrowd` and `incrowd --help` take no time.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from incrowd._random import SeededRandomness, SystemRandomness
    from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError, LedgerError
    from incrowd.privacy.accounting import Budget, Price, Relation
    from incrowd.privacy.clipping import (
        ElementwiseClip,
        FixedClip,
        MedianClip,
        NormalisedClip,
        PerLayerClip,
        QuantileClip,
    )
    from incrowd.privacy.contribution import Layout
    from incrowd.privacy.ledger import Ledger
    from incrowd.privacy.plan import Plan, PlanConfig
    from incrowd.privacy.planner import Question
    from incrowd.privacy.release import PrivateRun, Release
    from incrowd.privacy.sampling import Everyone, FixedSize, Poisson
    from incrowd.privacy.schedule import Schedule, Step, constant, growing, listed
    from incrowd.privacy.statement import Statement

__version__ = "0.1.0.dev0"

__all__ = [
    "Budget",
    "BudgetExceeded",
    "ConfigError",
    "DataError",
    "ElementwiseClip",
    "Everyone",
    "FixedClip",
    "FixedSize",
    "IncrowdError",
    "Layout",
    "Ledger",
    "LedgerError",
    "MedianClip",
    "NormalisedClip",
    "PerLayerClip",
    "Plan",
    "PlanConfig",
    "Poisson",
    "Price",
    "PrivateRun",
    "QuantileClip",
    "Question",
    "Relation",
    "Release",
    "Schedule",
    "SeededRandomness",
    "Statement",
    "Step",
    "SystemRandomness",
    "__version__",
    "constant",
    "growing",
    "listed",
]

_HOMES = {
    "incrowd._random": ("SeededRandomness", "SystemRandomness"),
    "incrowd.errors": ("BudgetExceeded", "ConfigError", "DataError", "IncrowdError", "LedgerError"),
    "incrowd.privacy.accounting": ("Budget", "Price", "Relation"),
    "incrowd.privacy.clipping": (
        "ElementwiseClip",
        "FixedClip",
        "MedianClip",
        "NormalisedClip",
        "PerLayerClip",
        "QuantileClip",
    ),
    "incrowd.privacy.contribution": ("Layout",),
    "incrowd.privacy.ledger": ("Ledger",),
    "incrowd.privacy.plan": ("Plan", "PlanConfig"),
    "incrowd.privacy.planner": ("Question",),
    "incrowd.privacy.release": ("PrivateRun", "Release"),
    "incrowd.privacy.sampling": ("Everyone", "FixedSize", "Poisson"),
    "incrowd.privacy.schedule": ("Schedule", "Step", "constant", "growing", "listed"),
    "incrowd.privacy.statement": ("Statement",),
}


def __getattr__(name: str) -> object:
    """Import a public name from the module that it lives in."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'incrowd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
