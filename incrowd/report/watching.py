"""A live page of runs, searches, pools and servers, for this machine alone."""

import hashlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.report.page import page
from incrowd.report.shown import Shown, of_status, read, told_apart

KINDS = ("run.sqlite", "search.json", "pool.sqlite", "ledger.sqlite")
"""Files that tell what a folder is."""

MOST = 50
"""A page shows at most the latest runs of a folder of them."""

PACE = 0.4
"""Looks are at least this many seconds apart, and three times as long as a look takes."""

_HOST = "127.0.0.1"
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_PATIENCE = 5.0
_LONGEST = 4_000_000


class Sources:
    """The watched places: folders of runs, searches and pools, folders of such folders, and addresses of servers.

    Guarantee: nothing in a folder changes. New runs appear; an unchanged run is not read again.

    Edge cases: the first look refuses what it cannot read. Later such a place stays as it was last seen, and `troubles`
    tells why. A run that has gone is left out.
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
        """The facts of the last look, under distinct names."""
        return told_apart([shown for _, shown in self._seen.values()])

    def look(self) -> bool:
        """Look again, and return whether anything has changed."""
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
    """Sizes and times of the files, which change with every write."""
    files = [place] if place.is_file() else [*place.glob("*"), *place.glob("silos/*/ledger.sqlite*")]
    marks = {}
    for each in files:
        with suppress(FileNotFoundError):  # a log that a writer has just removed
            found = each.stat()
            marks[str(each)] = found.st_size, found.st_mtime_ns
    return marks


def _fetched(address: str) -> dict[str, object]:
    """Ask a server for its status."""
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
    """Refuse redirections."""

    def redirect_request(self, *_given: object, **_named: object) -> None:
        raise urllib.error.URLError("it sends elsewhere")


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Straight)


class LivePage:
    """The page of the watched places. A request makes it look, at most once in `PACE` seconds."""

    def __init__(self, sources: Sources) -> None:
        self._sources, self._lock = sources, threading.Lock()
        self._text, self._next = self._page(), 0.0

    def answer(self, request: Request) -> Response:
        """Send the page, or 304 to a reader who has it."""
        with self._lock:
            if time.monotonic() >= self._next:
                begun = time.monotonic()
                if self._sources.look() and self._sources.shown:
                    self._text = self._page()
                self._next = time.monotonic() + max(PACE, 3 * (time.monotonic() - begun))
            text = self._text
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=_HEADERS)
        return HTMLResponse(text, headers=_HEADERS | {"etag": tag})

    def _page(self) -> str:
        shown = self._sources.shown
        over = all(one.over for one in shown)
        state = "Over: nothing will change any more" if over else "Live"
        return page(shown, state=" · ".join([state, *self._sources.troubles]))


def application(sources: Sources) -> Starlette:
    """Make the ASGI application.

    Guarantee: it serves one page, and answers to names of this machine alone. A foreign site whose name points here
    cannot read it.
    """
    named = Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"], www_redirect=False)
    return Starlette(routes=[Route("/", LivePage(sources).answer)], middleware=[named])


def watch(places: Sequence[str], *, port: int = 0, listening: Callable[[str], object]) -> None:
    """Serve the live page to this machine until SIGTERM or SIGINT; `listening` gets the address."""
    app = application(Sources(places))
    try:
        listener = socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        remedy = f"it cannot be listened to ({error}): give a --port that is free, or 0"
        raise ConfigError(field="port", value=port, remedy=remedy) from error
    with listener:
        listening(f"http://{_HOST}:{listener.getsockname()[1]}/")
        config = uvicorn.Config(
            app, lifespan="off", ws="none", access_log=False, log_level="warning", timeout_graceful_shutdown=1
        )
        uvicorn.Server(config).run(sockets=[listener])
