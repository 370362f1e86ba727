"""What may be shown of the folders of runs, searches, pools and ledgers: see `Shown`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.report import ledger_shown, pool_shown, run_shown, search_shown
from incrowd.report.plain import Kind, Shown, ShownFacts

__all__ = ["Kind", "Shown", "ShownFacts", "read", "read_all", "told_apart"]


def read(folder: Path, *, live: bool = False) -> Shown:
    """What may be shown of the run, search, pool or ledger in a folder (or of a ledger's file), over or not.

    For a `live` page, which looks every second, no ledger is priced before the run is over.

    Guarantee: nothing in the folder is changed, and who writes there is not kept from it.

    Edge cases: nothing of the kind there, or an attempt of a private search: `ConfigError`; files that were damaged:
    `DataError`.
    """
    folder = folder.resolve()
    try:
        return _read(folder, live=live)
    except IncrowdError:
        raise
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"{folder} is not as incrowd wrote it ({error!r:.80}): put its files back") from error


def _read(folder: Path, *, live: bool) -> Shown:
    if (folder / "search.json").is_file():
        return search_shown.search_in(folder)
    if (folder / "run.sqlite").is_file():
        return run_shown.run_in(folder, live=live)
    if (folder / "pool.sqlite").is_file():
        return pool_shown.pool_in(folder)
    if folder.is_file() or (folder / "ledger.sqlite").is_file():
        return ledger_shown.ledger_in(folder)
    remedy = "there is no run, search, pool or ledger: name the folder that incrowd train, sweep or serve wrote"
    raise ConfigError(field="folder", value=str(folder), remedy=remedy)


def read_all(folders: Sequence[Path]) -> list[Shown]:
    """What may be shown of each of several folders, under names that tell them apart.

    Edge cases: the same folder twice is a `ConfigError`, for it would look like two runs.
    """
    places = [folder.resolve() for folder in folders]
    twice = next((place for place, times in Counter(places).items() if times > 1), None)
    if twice is not None:
        raise ConfigError(field="folder", value=str(twice), remedy="it is named twice: leave one out")
    return told_apart([read(place) for place in places])


def told_apart(shown: Sequence[Shown]) -> list[Shown]:
    """The same, with a number after those names that several have."""
    times, seen = Counter(one.name for one in shown), Counter[str]()
    named = []
    for one in shown:
        seen[one.name] += 1
        named.append(replace(one, name=f"{one.name} ({seen[one.name]})") if times[one.name] > 1 else one)
    return named
