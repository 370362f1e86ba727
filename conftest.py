"""What holds for every test, the doctests in incrowd/ included (a file in tests/ would not reach those)."""

import functools
import importlib
import os
import pkgutil
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from coverage.tracer import CTracer
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import PrivacyAccountant
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from hypothesis import settings

import incrowd.learning
import incrowd.parties
import incrowd.privacy
from incrowd.privacy.account import accounting
from tests.prices import SharedPrices

# The same examples whenever the same tests run: a failure is the fault of the change at hand. No deadline: machines
# differ in speed.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")

PRICES = "INCROWD_TESTS_PRICES"

# Coverage, which doubles the time, is measured in the tests of these folders and in those that say `watched`. What only
# others reach counts as untested.
ROOT = Path(__file__).parent
WATCHED = tuple(
    ROOT / name
    for name in (
        "incrowd/learning",
        "incrowd/privacy",
        "tests/algorithms",
        "tests/learning",
        "tests/parties",
        "tests/privacy",
    )
)

# Of these, tests of what is not measured reach nothing that is measured and that others do not.
UNWATCHED = re.compile(r"tests/(algorithms/test_metrics|learning/test_(engine|losses|workers))\.py")

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


class Watch:
    """Coverage, on and off."""

    def __init__(self, config: pytest.Config) -> None:
        plugin = config.pluginmanager.getplugin("_cov")
        self._controller = plugin and plugin.cov_controller  # nothing, where coverage was not asked for
        self._on = True

    def turn(self, *, on: bool) -> None:
        """Measure from here on, or do not."""
        if self._controller and on != self._on:
            self._on = on
            (self._controller.resume if on else self._controller.pause)()


WATCH = pytest.StashKey[Watch]()


def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; nothing is measured while it runs, in this thread."""

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        tracer: Any = sys.gettrace()
        if not isinstance(tracer, CTracer):
            return function(*arguments, **named)
        tracer.stop()
        try:
            return function(*arguments, **named)
        finally:
            tracer.start()

    return run


def leave_out_dp_accounting() -> None:
    """What it does is not ours to measure and takes twice as long when it is traced.

    Code of ours that this calls back would count as untested. Only its log does, and that from elsewhere as well.
    """
    curves = ("compose", "self_compose", "get_epsilon_for_delta", "get_delta_for_epsilon")
    made = [name for name in vars(pld) if name.startswith("from_")]
    parts: dict[Any, Sequence[str]] = {
        pld: made,
        pld.PrivacyLossDistribution: curves,
        rdp: ("compute_delta",),
        PrivacyAccountant: ("compose",),
    }
    for owner, names in parts.items():
        for name in names:
            setattr(owner, name, unwatched(getattr(owner, name)))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is measured is imported under coverage, and what tests are made of is not."""
    watch = session.config.stash[WATCH] = Watch(session.config)
    if not session.config.pluginmanager.hasplugin("dsession"):  # the process that xdist's others work for
        leave_out_dp_accounting()
        for package in (incrowd.learning, incrowd.parties, incrowd.privacy):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(module.name)
    watch.turn(on=False)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fixtures are measured as the tests are that they are made for."""
    path = item.path.relative_to(ROOT).as_posix()
    within = any(item.path.is_relative_to(folder) for folder in WATCHED) and not UNWATCHED.fullmatch(path)
    watched = item.get_closest_marker("watched") or within
    item.config.stash[WATCH].turn(on=bool(watched))
    return (yield)


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
