"""What holds for every test, the doctests in incrowd/ included (a file in tests/ would not reach those)."""

import os
import tempfile

import pytest
from hypothesis import settings

# The same examples whenever the same tests run: a failure is the fault of the change at hand. No deadline: machines
# differ in speed.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the state that commands leave apart from the user's own; before collection, which may already run some."""
    folder = tempfile.TemporaryDirectory(prefix="incrowd-tests-")
    os.environ["INCROWD_STATE"] = folder.name
    config.add_cleanup(folder.cleanup)
