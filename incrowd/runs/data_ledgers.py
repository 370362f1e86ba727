"""Ledgers for the data that settings name: begun before the first run, or let go on for data that have changed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.registry import Registered
from incrowd.privacy.ledger.tally import DataIdentity
from incrowd.privacy.plan.plan import SAMPLING
from incrowd.privacy.plan.sampling import Cyclic, Poisson
from incrowd.runs.config import Config
from incrowd.runs.identity import identities_of_silos, identity_of, identity_of_records
from incrowd.runs.settings import settings_of
from incrowd.runs.silo_config import SiloConfig


def begin_ledgers(
    tables: Mapping[str, Any], *, budget: Budget, path: Path | None, witness: Path | None
) -> list[Registered]:
    """The ledger of the data that settings name, begun with this budget; for silos, of each silo.

    Edge cases: data that have one already are refused, and so are public data.
    """
    identities, relation = _of(tables)
    if len(identities) > 1 and path is not None:
        raise ConfigError(field="FILE", value=str(path), remedy="there are several silos: leave it out")
    home = Home.of_user()
    for identity in identities:
        for known in home.found(identity):
            if known is not None:
                raise ConfigError(field="data", value=identity.name, remedy=f"their ledger is {known.path} already")
    return [home.ledger_of(each, budget=budget, relation=relation, path=path, witness=witness) for each in identities]


def include_data(tables: Mapping[str, Any]) -> list[Registered]:
    """Let the ledgers of these data's names go on for the content that the data have now."""
    home, ledgers = Home.of_user(), []
    for identity in _of(tables)[0]:
        _, known = home.found(identity)
        if known is None:
            remedy = "no ledger is known by this name: state the name that its data had before as data.identity"
            raise ConfigError(field="data.identity", value=identity.name, remedy=remedy)
        home.include(known, identity)
        ledgers.append(known)
    return ledgers


def _of(tables: Mapping[str, Any]) -> tuple[list[DataIdentity], Relation]:
    config = settings_of({name: section for name, section in tables.items() if name != "recipe"})
    if isinstance(config, SiloConfig):
        together = config.privacy.noise_by == "server"
        identities = [identity_of_records(config)] if together else identities_of_silos(config)
        relation = Poisson.relation
    else:
        identities, relation = [identity_of(config)], relation_of(config)
    if identities[0].public:
        remedy = "public data have no budget to keep: their runs have a ledger each, in their folders"
        raise ConfigError(field="data.public", value=True, remedy=remedy)
    return identities, relation


def relation_of(config: Config) -> Relation:
    """The neighbouring relation that a run of these settings promises."""
    wanted = config.privacy
    if wanted.noise_by == "party":
        return Relation.REPLACE_ONE
    return Cyclic.relation if wanted.noise == "correlated" else SAMPLING[wanted.sampling].relation
