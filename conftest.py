"""What holds for every test, the doctests in incrowd/ included (a file in tests/ would not reach those)."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from incrowd.privacy.account import accounting
from tests.prices import SharedPrices

# The same examples whenever the same tests run: a failure is the fault of the change at hand. No deadline: machines
# differ in speed.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

PRICES = "INCROWD_TESTS_PRICES"

# Coverage is not measured in these tests, which are about other rooms and would take half as long again: what only they
# reach counts as untested.
TESTS = Path(__file__).parent / "tests"
OTHER_ROOMS = (
    "audit",
    "bench",
    "benchmarks",
    "data",
    "drawdiscard",
    "examples",
    "flower",
    "papers",
    "report",
    "reproduce",
    "scripts",
    "service",
)
UNWATCHED = tuple(TESTS / name for name in OTHER_ROOMS)


# Ledgers wait for the disk at every line, which is a seventh of what their tests take. No test sees whether a disk
# keeps what it was told to: it would have to cut the power.
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of this user alone in it
ROOM = 2 * 2**30


def pytest_configure(config: pytest.Config) -> None:
    """Before collection, which may already run some commands and compute some prices."""
    if not hasattr(config, "workerinput"):
        write_to_memory()
    # The state that commands leave is kept apart from the user's own.
    os.environ["INCROWD_STATE"] = new_folder(config)
    # Prices are shared by the processes of xdist: the one that starts them makes the folder.
    if not hasattr(config, "workerinput"):
        os.environ[PRICES] = new_folder(config)
    accounting._computed = SharedPrices(Path(os.environ[PRICES]))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets tests that are not about what is measured run without being watched."""
    if config.pluginmanager.hasplugin("_cov"):
        for item in items:
            if any(item.path.is_relative_to(folder) for folder in UNWATCHED):
                item.add_marker(pytest.mark.no_cover)


def write_to_memory() -> None:
    """Put temporary files where no disk is, if there is room and nobody has said where they should be."""
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # it is looked up once


def new_folder(config: pytest.Config) -> str:
    """A folder that goes when the tests end."""
    folder = tempfile.TemporaryDirectory(prefix="incrowd-tests-")
    config.add_cleanup(folder.cleanup)
    return folder.name
