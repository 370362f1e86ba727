"""`incrowd watch`: the page of `incrowd report`, live while runs train."""

import signal
import webbrowser
from importlib.util import find_spec
from types import FrameType
from typing import Annotated, NoReturn

import typer

from incrowd.cli._options import Json, need_training
from incrowd.cli._print import print_json
from incrowd.errors import ConfigError

app = typer.Typer()


@app.command("watch")
def watch(
    places: Annotated[
        list[str],
        typer.Argument(metavar="DIR|URL...", help="Folders of runs or of servers, or a folder of them; or a server."),
    ],
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Serve the page of a report live: rounds appear as they are written down.

    A folder is that of a run, a search, a pool or of `incrowd flower serve`, or one that holds several of them, where
    new ones appear; an address is that of `incrowd serve`. Only this machine is answered. SIGTERM ends it.

    Example: incrowd watch out --open
    """
    need_training()
    for package in ("uvicorn", "starlette"):
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy="pip install 'incrowd[serve]' brings it")
    from incrowd.report import watching

    def listening(url: str) -> None:
        if as_json:
            print_json({"url": url})
        else:
            typer.echo(f"watch at {url}")
        if open_page:
            webbrowser.open(url)

    before = signal.signal(signal.SIGTERM, _end)  # while the server listens it hears it, and sends it on in the end
    try:
        watching.watch(places, port=port, listening=listening)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
