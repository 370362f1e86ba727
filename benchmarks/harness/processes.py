"""What processes used, those that they started included, as Linux counts it."""

import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def family(process: int) -> set[int]:
    """A process and all that come from it."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(place.name)] = int(_fields(int(place.name))[1])
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def processor_seconds(processes: Iterable[int]) -> float:
    """The processor time that these took so far, together; one that is gone counts as nothing."""
    total = 0.0
    for process in processes:
        with suppress(OSError):
            fields = _fields(process)
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def called(processes: Iterable[int], words: str) -> list[int]:
    """Those of these processes in whose command line there is this."""
    found = []
    for process in processes:
        with suppress(OSError):
            if words in Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace"):
                found.append(process)
    return found


def memory(process: int) -> dict[str, float]:
    """A process's memory in bytes: all that is resident, its part of it where shared memory is divided among all who
    share it (proportional), what is nobody else's, and the most that ever was resident.
    """
    kilobytes = {}
    for file in ("smaps_rollup", "status"):
        for line in Path(f"/proc/{process}/{file}").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                kilobytes[name] = 1024.0 * int(value.split()[0])
    return {
        "resident": kilobytes["Rss"],
        "proportional": kilobytes["Pss"],
        "private": kilobytes["Private_Clean"] + kilobytes["Private_Dirty"],
        "most": kilobytes["VmHWM"],
    }


@contextmanager
def asleep(processes: Iterable[int]) -> Iterator[None]:
    """Have processes do nothing at all for as long as the `with` block lasts."""
    several = list(processes)
    _signal(several, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(several, signal.SIGCONT)


@contextmanager
def awake(processes: Iterable[int]) -> Iterator[None]:
    """Have processes that are asleep go on for as long as the `with` block lasts."""
    several = list(processes)
    _signal(several, signal.SIGCONT)
    try:
        yield
    finally:
        _signal(several, signal.SIGSTOP)


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _fields(process: int) -> list[str]:
    """What /proc says of a process, after its name."""
    return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
