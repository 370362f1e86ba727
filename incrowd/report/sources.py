"""What is watched: folders of runs, searches and pools, a folder of such folders, and a server of draw and discard."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.report.plain import Shown
from incrowd.report.pool_shown import of_status
from incrowd.report.shown import read, told_apart

KINDS = ("run.sqlite", "search.json", "pool.sqlite", "ledger.sqlite")
"""Files that say what a folder is."""

MOST = 50
"""So many runs are on a page at once: the latest of a folder of them."""

_PATIENCE = 5.0
_LONGEST = 4_000_000


class Sources:
    """Looks at what is watched, again and again.

    Guarantee: nothing in a folder is changed (`incrowd.report.shown.read`). A folder of runs is looked through each
    time, so new runs appear; one that has not changed is not read again.

    Edge cases: what cannot be read when it is first looked at is refused (`ConfigError`, `DataError`); later on it
    stays as it was last seen, and `troubles` says what is the matter. A run that has gone is left out.
    """

    def __init__(self, places: Sequence[str]) -> None:
        for place in places:
            if not _is_address(place) and not Path(place).exists():
                remedy = "there is no such folder: name one that a run, a search or a server writes to, or a URL"
                raise ConfigError(field="watch", value=place, remedy=remedy)
        self._places = [place if _is_address(place) else str(Path(place).resolve()) for place in places]
        self._seen: dict[str, tuple[object, Shown]] = {}
        self.troubles: tuple[str, ...] = ()
        self.look()
        if self.troubles:
            raise DataError("; ".join(self.troubles))
        if not self._seen:
            remedy = "there is no run in it yet: name the folder that a run is written to, or wait for the first"
            raise ConfigError(field="watch", value=self._places, remedy=remedy)

    @property
    def shown(self) -> list[Shown]:
        """What was last seen, under names that tell it apart."""
        return told_apart([shown for _, shown in self._seen.values()])

    def look(self) -> bool:
        """Look again; whether anything has changed."""
        before, troubles = (self._seen, self.troubles), list[str]()
        seen = dict[str, tuple[object, Shown]]()
        for place in self._present():
            try:
                seen[place] = self._one(place)
            except FileNotFoundError:
                continue  # it has just gone
            except IncrowdError as error:
                troubles.append(str(error))
                if place in self._seen:
                    seen[place] = self._seen[place]
        self._seen, self.troubles = seen, tuple(troubles)
        return before != (self._seen, self.troubles)

    def _present(self) -> Iterator[str]:
        for place in self._places:
            if _is_address(place) or _is_kind(Path(place)):
                yield place
            elif Path(place).is_dir():
                found = [each for each in Path(place).iterdir() if not each.is_symlink() and _is_kind(each)]
                yield from map(str, sorted(sorted(found, key=lambda each: each.stat().st_mtime_ns)[-MOST:]))

    def _one(self, place: str) -> tuple[object, Shown]:
        if _is_address(place):
            return None, of_status(_fetched(place), name=urlsplit(place).netloc)
        mark = _mark(Path(place))
        known = self._seen.get(place)
        return known if known is not None and known[0] == mark else (mark, read(Path(place), live=True))


def _is_address(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _is_kind(place: Path) -> bool:
    return place.suffix == ".sqlite" if place.is_file() else any((place / name).is_file() for name in KINDS)


def _mark(place: Path) -> object:
    """Sizes and times of what is there: another as soon as a file is written."""
    files = [place] if place.is_file() else [*place.glob("*"), *place.glob("silos/*/ledger.sqlite*")]
    marks = {}
    for each in files:
        with suppress(FileNotFoundError):  # a log that a writer has just removed
            found = each.stat()
            marks[str(each)] = found.st_size, found.st_mtime_ns
    return marks


def _fetched(address: str) -> dict[str, object]:
    """A server's status. Edge cases: another answer than one, a redirection, or none in time: `DataError`."""
    url = address if address.endswith("status.json") else f"{address.rstrip('/')}/status.json"
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
    """Follows no redirection."""

    def redirect_request(self, *_given: object, **_named: object) -> None:
        raise urllib.error.URLError("it sends elsewhere")


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Straight)
