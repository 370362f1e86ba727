import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from incrowd.errors import ConfigError, IncrowdError
from incrowd.runs.database import Record
from incrowd.runs.processes import Orphan, side_by_side
from tests.runs.waiting import until


def nothing(_: int) -> None:
    pass


def done(*, jobs: int, work: Callable[[int], None]) -> tuple[list[int], list[int]]:
    begun: list[int] = []
    return sorted(side_by_side(range(5), jobs=jobs, first=begun.append, work=work)), begun


def write(folder: Path) -> Callable[[int], None]:
    def work(task: int) -> None:
        (folder / f"{task}").write_text(str(os.getpid()))

    return work


@pytest.mark.parametrize("jobs", [1, 3, 9])
def test_every_task_is_done_once_and_begun_in_order(tmp_path: Path, jobs: int) -> None:
    finished, begun = done(jobs=jobs, work=write(tmp_path))
    assert finished == begun == [0, 1, 2, 3, 4]
    processes = {(tmp_path / f"{task}").read_text() for task in range(5)}
    assert processes == {str(os.getpid())} if jobs == 1 else len(processes) == 5


def test_a_failure_lets_the_others_end_and_begins_no_more(tmp_path: Path) -> None:
    def work(task: int) -> None:
        if task == 0:
            raise ConfigError(field="rounds", value=0, remedy="give more")
        until(lambda: True)
        (tmp_path / f"{task}").touch()

    begun: list[int] = []
    with pytest.raises(IncrowdError, match="rounds = 0: give more"):
        list(side_by_side(range(6), jobs=2, first=begun.append, work=work))
    assert len(begun) < 6
    assert {int(path.name) for path in tmp_path.iterdir()} == set(begun) - {0}


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda task: sys.exit(1 // task), "status 1"),
        (lambda _: os._exit(7), "status 7"),
        (lambda _: os.kill(os.getpid(), signal.SIGKILL), "status -9"),
    ],
)
def test_however_a_process_ends_it_is_noticed(work: Callable[[int], None], message: str) -> None:
    with pytest.raises(IncrowdError, match=message):
        list(side_by_side([0], jobs=2, first=nothing, work=work))


def waits() -> bool:
    """Whether the main thread waits for processes, and is not just about to begin one."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not wait.__code__:
        frame = frame.f_back
    return frame is not None


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_reaches_all_and_lets_them_come_to_an_end(tmp_path: Path) -> None:
    def work(task: int) -> None:
        try:
            (tmp_path / f"begun-{task}").touch()
            until(lambda: False)
        finally:
            (tmp_path / f"saved-{task}").touch()

    def interrupt() -> None:
        until(lambda: len(list(tmp_path.glob("begun-*"))) == 2 and waits())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        list(side_by_side(range(4), jobs=2, first=nothing, work=work))
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]


def test_a_run_whose_parent_is_gone_stops(tmp_path: Path) -> None:
    """A process begins one more and ends at once; the one it began sees that at the next round."""
    record = Record(round=0, epsilon=1.0, seconds=1.0, clients_per_second=1.0)

    def orphan() -> None:
        watcher = Orphan()
        watcher.start({}, [])
        watcher.round(record)  # the parent is still there
        (tmp_path / "begun").touch()
        try:
            while True:
                time.sleep(0.01)
                watcher.round(record)
        except KeyboardInterrupt:
            watcher.end(None)
            (tmp_path / "stopped").touch()
            os._exit(0)

    def parent() -> None:
        multiprocessing.get_context("fork").Process(target=orphan).start()
        until((tmp_path / "begun").exists)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=parent)
    process.start()
    process.join()
    until((tmp_path / "stopped").exists)
    watcher = Orphan()
    watcher._parent = -1
    watcher.round(record)  # here nobody waits for a run, so nothing stops it
