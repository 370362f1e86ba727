"""What the attacks attack: the federation and the folders that other tests use."""

from tests.federated.conftest import data
from tests.runs.conftest import folder

__all__ = ["data", "folder"]
