"""The page as it stands now, section by section, for however many look at it."""

import asyncio
import hashlib
import time
from collections.abc import Mapping

from incrowd.report.page import page, sections
from incrowd.report.sources import Sources

PACE = 0.4
"""So many seconds pass between two looks, and ten times as many as a look takes, whichever is more."""


class PageFeed:
    """Looks at what is watched, and knows which sections have changed since a version.

    Guarantee: however many look, each change is computed once, beside the event loop. Nothing is kept for a client that
    is slow: it is told how things are when it takes the next event, not how they were in between.

    Edge cases: a section or a run that comes or goes makes another page: `layout` changes, and who has the old one is
    to load it anew.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.version = 0
        self.layout = ""
        self.closed = False
        self._page = ""
        self._content: Mapping[str, str] = {}
        self._changed: dict[str, int] = {}
        self._moved = asyncio.Condition()
        self._compute()

    @property
    def page(self) -> str:
        """The whole page, which knows its version."""
        return self._page

    @property
    def over(self) -> bool:
        """Whether nothing that is watched will change any more."""
        shown = self.sources.shown
        return bool(shown) and all(one.over for one in shown)

    @property
    def trouble(self) -> str:
        """What cannot be read at the moment, or nothing."""
        return "; ".join(self.sources.troubles)

    def since(self, version: int) -> dict[str, str]:
        """The sections that have changed since a version."""
        return {name: self._content[name] for name, changed in self._changed.items() if changed > version}

    async def run(self) -> None:
        """Look, as long as this task is not cancelled."""
        while True:
            began = time.monotonic()
            changed = await asyncio.to_thread(self._look)
            if changed:
                async with self._moved:
                    self._moved.notify_all()
            await asyncio.sleep(max(PACE, 10 * (time.monotonic() - began)))

    async def wait(self, version: int, *, at_most: float) -> None:
        """Until there is a later version, or so many seconds have passed."""
        async with self._moved:
            try:
                await asyncio.wait_for(self._moved.wait_for(lambda: self.version > version or self.closed), at_most)
            except TimeoutError:
                return

    async def close(self) -> None:
        """Let everybody go who waits."""
        async with self._moved:
            self.closed = True
            self._moved.notify_all()

    def _look(self) -> bool:
        return self.sources.look() and self._compute()

    def _compute(self) -> bool:
        shown = self.sources.shown
        if not shown:
            return False
        content = sections(shown, live=True)
        changed = {name for name, text in content.items() if self._content.get(name) != text}
        if not changed and content.keys() == self._content.keys():
            self.version += 1  # a trouble has come or gone
            return True
        version = self.version + 1
        layout = "\n".join([*content, *(one.name for one in shown)])
        self._changed = {name: version if name in changed else self._changed[name] for name in content}
        self._content = content
        self.layout = hashlib.sha256(layout.encode()).hexdigest()[:16]
        self._page = page(shown, live=True, version=version, layout=self.layout)
        self.version = version
        return True
