"""`incrowd watch`: the page of `incrowd report`, live while runs train."""

import signal
import webbrowser
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from incrowd.cli._options import Json, need_training
from incrowd.cli._print import print_json
from incrowd.cli.serve import token_of
from incrowd.errors import ConfigError

app = typer.Typer()


@app.command("watch")
def watch(
    places: Annotated[
        list[str],
        typer.Argument(metavar="DIR|URL...", help="Folders of runs or of servers, or a folder of them; or a server."),
    ],
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine a token is needed.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The token that a page asks for; one is made if it needs one."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Serve the page of a report live: rounds appear as they are written down.

    A folder is that of a run, a search, a pool or of `incrowd flower serve`, or one that holds several of them, where
    new ones appear; an address is that of `incrowd serve`. Only this machine is answered unless --host says otherwise.
    SIGTERM ends it.

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

    token = None if token_file is None else token_of(token_file)
    before = signal.signal(signal.SIGTERM, _end)  # while the server listens it hears it, and sends it on in the end
    try:
        watching.watch(places, host=host, port=port, token=token, listening=listening)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
