"""incrowd: learn one model from many parties without learning anything about any one of them.

The names are found when they are asked for, so that `import incrowd` and `incrowd --help` take no time.
"""

import typing

from incrowd._lazy import lazily as _lazily

if typing.TYPE_CHECKING:
    from incrowd._random import SeededRandomness as SeededRandomness
    from incrowd._random import SystemRandomness as SystemRandomness
    from incrowd.data.clients import Clients as Clients
    from incrowd.drawdiscard.device import Device as Device
    from incrowd.drawdiscard.server import Server as Server
    from incrowd.drawdiscard.specification import Specification as Specification
    from incrowd.errors import BudgetExceeded as BudgetExceeded
    from incrowd.errors import ConfigError as ConfigError
    from incrowd.errors import DataError as DataError
    from incrowd.errors import IncrowdError as IncrowdError
    from incrowd.errors import LedgerError as LedgerError
    from incrowd.estimators import PrivateClassifier as PrivateClassifier
    from incrowd.estimators import PrivateRegressor as PrivateRegressor
    from incrowd.federation import Federation as Federation
    from incrowd.privacy.account.accounting import Budget as Budget
    from incrowd.privacy.account.accounting import Relation as Relation
    from incrowd.privacy.ledger.ledger import Ledger as Ledger
    from incrowd.privacy.mechanism.clipping import FixedClip as FixedClip
    from incrowd.privacy.mechanism.clipping import NormalisedClip as NormalisedClip
    from incrowd.privacy.mechanism.clipping import QuantileClip as QuantileClip
    from incrowd.privacy.plan.plan import Plan as Plan
    from incrowd.privacy.plan.plan import PlanConfig as PlanConfig
    from incrowd.privacy.plan.planner import Question as Question
    from incrowd.privacy.plan.sampling import Everyone as Everyone
    from incrowd.privacy.plan.sampling import Poisson as Poisson
    from incrowd.privacy.plan.sampling import Schedule as Schedule
    from incrowd.privacy.plan.sampling import constant as constant
    from incrowd.privacy.release import PrivateRun as PrivateRun
    from incrowd.privacy.release import Release as Release
    from incrowd.privacy.statement import Statement as Statement
    from incrowd.runs.config import Private as Private
    from incrowd.runs.config import RunOptions as RunOptions
    from incrowd.runs.data_config import Parties as Parties
    from incrowd.runs.data_config import Table as Table
    from incrowd.runs.predict import Result as Result
    from incrowd.settings import Local as Local
    from incrowd.settings import ServerOptimizer as ServerOptimizer

__version__ = "0.1.0.dev0"

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

__all__ = [name for names in (("__version__",), *_HOMES.values()) for name in names]
__getattr__ = _lazily(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
