"""What was spent, on disk before anything is released."""

from incrowd.privacy.ledger.identity import DataIdentity
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.receipt import Receipt

__all__ = [
    "DataIdentity",
    "Ledger",
    "Receipt",
]
