"""What is watched: folders of runs, searches and pools, a folder of such folders, and a server of draw and discard."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.report.plain import Shown
from incrowd.report.pool_shown import of_status
from incrowd.report.shown import read, told_apart

KINDS = ("run.sqlite", "search.json", "pool.sqlite", "ledger.sqlite")
"""Files that say what a folder is."""

STATUS = "status.json"

MOST = 50
"""So many runs are on a page at once: the latest of a folder of them."""

_PATIENCE = 5.0
_LONGEST = 4_000_000


class Sources:
    """Looks at what is watched, again and again.

    Guarantee: nothing in a folder is changed (`incrowd.report.shown.read`); of a run that has grown only its new rounds
    are read, and of one that has not, nothing. A folder of runs is looked through each time, so new runs appear.

    Edge cases: what cannot be read when it is first looked at is refused (`ConfigError`, `DataError`); later on it
    stays as it was last seen, and `troubles` says what is the matter. A run that has gone is left out.
    """

    def __init__(self, places: Sequence[str]) -> None:
        if not places:
            raise ConfigError(field="watch", value=[], remedy="name a folder, or the address of a server")
        self._places = [place if _is_address(place) else str(_folder(place)) for place in places]
        self._seen: dict[str, Shown] = {}
        self._marks: dict[str, object] = {}
        self.troubles: tuple[str, ...] = ()
        self._look(first=True)

    @property
    def shown(self) -> list[Shown]:
        """What was last seen, under names that tell it apart."""
        return told_apart(list(self._seen.values()))

    def look(self) -> bool:
        """Look again; whether anything has changed."""
        return self._look(first=False)

    def _look(self, *, first: bool) -> bool:
        before, troubles, seen = (dict(self._seen), self.troubles), [], {}
        for place in self._present():
            try:
                seen[place] = self._one(place)
            except IncrowdError as error:
                if first:
                    raise
                troubles.append(str(error))
                if place in self._seen:
                    seen[place] = self._seen[place]
            except FileNotFoundError:
                continue  # it has just gone
        if first and not seen:
            remedy = "there is no run in it yet: name the folder that a run is written to, or wait for the first"
            raise ConfigError(field="watch", value=self._places, remedy=remedy)
        self._seen, self.troubles = seen, tuple(troubles)
        return before != (seen, self.troubles)

    def _present(self) -> Iterator[str]:
        for place in self._places:
            if _is_address(place) or _is_kind(Path(place)):
                yield place
            else:
                yield from (str(folder) for folder in _inside(Path(place)))

    def _one(self, place: str) -> Shown:
        if _is_address(place):
            return of_status(_fetched(place), name=urlsplit(place).netloc)
        mark = _mark(Path(place))
        if place in self._seen and mark == self._marks.get(place):
            return self._seen[place]
        found = read(Path(place), before=self._seen.get(place))
        self._marks[place] = mark
        return found


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _folder(place: str) -> Path:
    folder = Path(place).resolve()
    if not folder.exists():
        remedy = "there is no such folder: name one that a run, a search or a server writes to, or a URL"
        raise ConfigError(field="watch", value=place, remedy=remedy)
    return folder


def _is_kind(folder: Path) -> bool:
    return folder.is_file() or any((folder / name).is_file() for name in KINDS)


def _inside(folder: Path) -> list[Path]:
    """The latest runs in a folder, in the order of their names."""
    try:
        found = [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink() and _is_kind(each)]
    except OSError:
        return []
    return sorted(sorted(found, key=lambda each: each.stat().st_mtime_ns)[-MOST:])


def _mark(folder: Path) -> object:
    """What is another as soon as a file is written: sizes and times of all but the heavy ones."""
    if folder.is_file():
        return _stamp(folder)
    files = [*folder.glob("*"), *folder.glob("silos/*/ledger.sqlite*")]
    return {str(each): _stamp(each) for each in files if not each.is_dir()}


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _fetched(address: str) -> dict[str, object]:
    """A server's status. Edge cases: another answer than one, a redirection, or none in time: `DataError`."""
    url = address if address.endswith(STATUS) else f"{address.rstrip('/')}/{STATUS}"
    try:
        with _OPENER.open(url, timeout=_PATIENCE) as reply:
            content = reply.read(_LONGEST + 1)
        found = json.loads(content) if len(content) <= _LONGEST else None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{address} gives no status ({error}): is `incrowd serve` there?") from error
    if not isinstance(found, dict):
        raise DataError(f"{address} gives no status: name the address of `incrowd serve`")
    return found


class _Straight(urllib.request.HTTPRedirectHandler):
    """Goes where it was told to, and nowhere else."""

    def redirect_request(self, *_given: object, **_named: object) -> None:
        raise urllib.error.URLError("it sends elsewhere")


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Straight)
