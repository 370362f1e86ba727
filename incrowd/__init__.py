"""incrowd: learn one model from many parties without learning anything about any one of them.

The names are found when they are asked for, so that `import incrowd` and `incrowd --help` take no time.
"""

import typing

from incrowd._lazy import lazily as _lazily

if typing.TYPE_CHECKING:
    from incrowd._random import Randomness, SeededRandomness, Stream, SystemRandomness
    from incrowd.data.clients import Clients, load_table
    from incrowd.data.columns import Columns
    from incrowd.drawdiscard.device import Device
    from incrowd.drawdiscard.server import Server
    from incrowd.drawdiscard.specification import Specification
    from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError, LedgerError
    from incrowd.estimators import PrivateClassifier, PrivateRegressor
    from incrowd.federation import Federation
    from incrowd.privacy.account.accounting import Budget, Price, Relation
    from incrowd.privacy.ledger.ledger import Ledger
    from incrowd.privacy.mechanism.clipping import (
        ElementwiseClip,
        FixedClip,
        Layout,
        MedianClip,
        NormalisedClip,
        PerLayerClip,
        QuantileClip,
    )
    from incrowd.privacy.plan.plan import Plan, PlanConfig
    from incrowd.privacy.plan.planner import Question
    from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, Step, constant, growing, listed
    from incrowd.privacy.release import PrivateRun, Release
    from incrowd.privacy.statement import Statement
    from incrowd.runs.config import LocalRecords, Private, PrivateRecords, RunOptions, Stop
    from incrowd.runs.data_config import Parties, Table
    from incrowd.runs.predict import Result
    from incrowd.settings import Local, ServerOptimizer

__version__ = "0.1.0.dev0"

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Clients",
    "Columns",
    "ConfigError",
    "DataError",
    "Device",
    "ElementwiseClip",
    "Everyone",
    "Federation",
    "FixedClip",
    "FixedSize",
    "IncrowdError",
    "Layout",
    "Ledger",
    "LedgerError",
    "Local",
    "LocalRecords",
    "MedianClip",
    "NormalisedClip",
    "Parties",
    "PerLayerClip",
    "Plan",
    "PlanConfig",
    "Poisson",
    "Price",
    "Private",
    "PrivateClassifier",
    "PrivateRecords",
    "PrivateRegressor",
    "PrivateRun",
    "QuantileClip",
    "Question",
    "Randomness",
    "Relation",
    "Release",
    "Result",
    "RunOptions",
    "Schedule",
    "SeededRandomness",
    "Server",
    "ServerOptimizer",
    "Specification",
    "Statement",
    "Step",
    "Stop",
    "Stream",
    "SystemRandomness",
    "Table",
    "__version__",
    "constant",
    "growing",
    "listed",
    "load_table",
]

_HOMES = {
    "incrowd._random": ("Randomness", "SeededRandomness", "Stream", "SystemRandomness"),
    "incrowd.runs.data_config": ("Parties", "Table"),
    "incrowd.runs.predict": ("Result",),
    "incrowd.runs.config": ("LocalRecords", "Private", "PrivateRecords", "RunOptions", "Stop"),
    "incrowd.settings": ("Local", "ServerOptimizer"),
    "incrowd.data.clients": ("Clients", "load_table"),
    "incrowd.data.columns": ("Columns",),
    "incrowd.estimators": ("PrivateClassifier", "PrivateRegressor"),
    "incrowd.federation": ("Federation",),
    "incrowd.drawdiscard.device": ("Device",),
    "incrowd.drawdiscard.server": ("Server",),
    "incrowd.drawdiscard.specification": ("Specification",),
    "incrowd.errors": ("BudgetExceeded", "ConfigError", "DataError", "IncrowdError", "LedgerError"),
    "incrowd.privacy.account.accounting": ("Budget", "Price", "Relation"),
    "incrowd.privacy.mechanism.clipping": (
        "ElementwiseClip",
        "FixedClip",
        "Layout",
        "MedianClip",
        "NormalisedClip",
        "PerLayerClip",
        "QuantileClip",
    ),
    "incrowd.privacy.ledger.ledger": ("Ledger",),
    "incrowd.privacy.plan.plan": ("Plan", "PlanConfig"),
    "incrowd.privacy.plan.planner": ("Question",),
    "incrowd.privacy.release": ("PrivateRun", "Release"),
    "incrowd.privacy.plan.sampling": (
        "Everyone",
        "FixedSize",
        "Poisson",
        "Schedule",
        "Step",
        "constant",
        "growing",
        "listed",
    ),
    "incrowd.privacy.statement": ("Statement",),
}


__getattr__ = _lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
