"""incrowd: learn one model from many parties without learning anything about any one of them.

The names are found when they are asked for, so that `import incrowd` and `incrowd --help` take no time.
"""

import typing

from incrowd._lazy import lazily as _lazily

if typing.TYPE_CHECKING:
    from incrowd._random import SeededRandomness, SystemRandomness
    from incrowd.data.clients import Clients
    from incrowd.drawdiscard.device import Device
    from incrowd.drawdiscard.server import Server
    from incrowd.drawdiscard.specification import Specification
    from incrowd.errors import BudgetExceeded, ConfigError, DataError, IncrowdError, LedgerError
    from incrowd.estimators import PrivateClassifier, PrivateRegressor
    from incrowd.federation import Federation
    from incrowd.privacy.account.accounting import Budget, Relation
    from incrowd.privacy.ledger.ledger import Ledger
    from incrowd.privacy.mechanism.clipping import FixedClip, NormalisedClip, QuantileClip
    from incrowd.privacy.plan.plan import Plan, PlanConfig
    from incrowd.privacy.plan.planner import Question
    from incrowd.privacy.plan.sampling import Everyone, Poisson, Schedule, constant
    from incrowd.privacy.release import PrivateRun, Release
    from incrowd.privacy.statement import Statement
    from incrowd.runs.config import Private, RunOptions
    from incrowd.runs.data_config import Parties, Table
    from incrowd.runs.predict import Result
    from incrowd.settings import Local, ServerOptimizer

__version__ = "0.1.0.dev0"

__all__ = [
    "Budget",
    "BudgetExceeded",
    "Clients",
    "ConfigError",
    "DataError",
    "Device",
    "Everyone",
    "Federation",
    "FixedClip",
    "IncrowdError",
    "Ledger",
    "LedgerError",
    "Local",
    "NormalisedClip",
    "Parties",
    "Plan",
    "PlanConfig",
    "Poisson",
    "Private",
    "PrivateClassifier",
    "PrivateRegressor",
    "PrivateRun",
    "QuantileClip",
    "Question",
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
    "SystemRandomness",
    "Table",
    "__version__",
    "constant",
]

_HOMES = {
    "incrowd._random": ("SeededRandomness", "SystemRandomness"),
    "incrowd.data.clients": ("Clients",),
    "incrowd.drawdiscard.device": ("Device",),
    "incrowd.drawdiscard.server": ("Server",),
    "incrowd.drawdiscard.specification": ("Specification",),
    "incrowd.errors": ("BudgetExceeded", "ConfigError", "DataError", "IncrowdError", "LedgerError"),
    "incrowd.estimators": ("PrivateClassifier", "PrivateRegressor"),
    "incrowd.federation": ("Federation",),
    "incrowd.privacy.account.accounting": ("Budget", "Relation"),
    "incrowd.privacy.ledger.ledger": ("Ledger",),
    "incrowd.privacy.mechanism.clipping": ("FixedClip", "NormalisedClip", "QuantileClip"),
    "incrowd.privacy.plan.plan": ("Plan", "PlanConfig"),
    "incrowd.privacy.plan.planner": ("Question",),
    "incrowd.privacy.plan.sampling": ("Everyone", "Poisson", "Schedule", "constant"),
    "incrowd.privacy.release": ("PrivateRun", "Release"),
    "incrowd.privacy.statement": ("Statement",),
    "incrowd.runs.config": ("Private", "RunOptions"),
    "incrowd.runs.data_config": ("Parties", "Table"),
    "incrowd.runs.predict": ("Result",),
    "incrowd.settings": ("Local", "ServerOptimizer"),
}


__getattr__ = _lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
