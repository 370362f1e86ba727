"""The privacy budget ledger: each charge is on disk before anything is released."""

from incrowd.privacy.content import DataIdentity
from incrowd.privacy.ledger.tally import Receipt

__all__ = ["DataIdentity", "Receipt"]
