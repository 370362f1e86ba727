"""`incrowd serve`: the draw-and-discard service."""

import stat
from functools import partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from incrowd.cli._options import Json
from incrowd.cli._print import print_json
from incrowd.errors import ConfigError

app = typer.Typer()

SHORTEST_TOKEN = 16

NO_KEY = "name the file of the key that signs admission tokens, or say --open-admission"


def _option(told: str, kind: str | None = None) -> Any:
    return typer.Option(help=told, metavar=kind)


def _nginx(wanted: bool) -> None:
    if wanted:
        typer.echo((resources.files("incrowd.service") / "nginx.conf").read_text(encoding="utf-8"), nl=False)
        raise typer.Exit


@app.command()
def serve(
    specification: Annotated[Path, typer.Argument(metavar="SPEC", help="The specification, a JSON or TOML file.")],
    store: Annotated[str, _option("memory, redis://, rediss:// or unix:// of a Redis.", "URL")] = "memory",
    folder: Annotated[Path | None, _option("Where a pool in memory is kept; without it, SPEC.pool.", "DIR")] = None,
    host: Annotated[str, _option("The address to listen at, of this machine only: nginx is the way in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
    workers: Annotated[int, _option("Processes; more than one need a Redis.")] = 1,
    keep_every: Annotated[float, _option("Seconds between two keeps of a pool in memory.")] = 5.0,
    remember_mb: Annotated[float, _option("Memory for replaced versions: late answers need theirs.")] = 64.0,
    turned_away: Annotated[float, _option("The share of honest answers that may be turned away.")] = 0.01,
    admin_token_file: Annotated[
        Path | None, _option("The token for orders; without it none are taken.", "FILE")
    ] = None,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Write one JSON line an event on standard error.")
    ] = False,
    admission_key: Annotated[
        Path | None, _option("The key that signs admission tokens; DIR/admission.key without it.", "FILE")
    ] = None,
    accepted_a_day: Annotated[int, _option("So many contributions of one account are accepted in a day.")] = 1,
    open_admission: Annotated[
        bool, typer.Option("--open-admission", help="Take contributions from anybody: one address can spoil the model.")
    ] = False,
    as_json: Json = False,
    _written: Annotated[
        bool,
        typer.Option(
            "--nginx", is_eager=True, callback=_nginx, help="Only write an nginx.conf: TLS and limits in front of it."
        ),
    ] = False,
) -> None:
    """Serve a specification: devices draw, learn, and send back. It prints where it listens; SIGTERM ends it.

    It listens on this machine only: nginx lets others in. A contribution needs a token: see `incrowd ddml token`.

    Example: incrowd serve mail.json --port 8000 --folder out/mail
    """
    need_serving(store)
    from incrowd.drawdiscard.specification import read_specification
    from incrowd.service import serving

    in_memory, pool = store == serving.MEMORY, folder or specification.with_suffix(".pool")
    if not in_memory and folder is not None:
        raise ConfigError(field="folder", value=str(folder), remedy="a pool in Redis has none: leave it out")
    if not in_memory and not open_admission and admission_key is None:
        raise ConfigError(field="admission-key", value=None, remedy=NO_KEY)
    options = serving.ServiceOptions(
        specification=read_specification(specification),
        store=store,
        folder=pool if in_memory else None,
        host=host,
        port=port,
        workers=workers,
        keep_every=keep_every,
        remember_mb=remember_mb,
        turned_away=turned_away,
        token=None if admin_token_file is None else token_of(admin_token_file),
        log_json=log_json,
    )
    if not open_admission:
        options = options.admitting(admission_key or pool / "admission.key", daily=accepted_a_day)
    told = {"fingerprint": options.specification.fingerprint, "store": "memory" if in_memory else "redis"}
    raise typer.Exit(serving.serve(options, listening=partial(_say, told, as_json=as_json)))


def _say(told: dict[str, str], url: str, *, as_json: bool) -> None:
    """Where it listens."""
    if as_json:
        print_json({"url": url} | told)
    else:
        typer.echo(
            f"listens at {url}, which only this machine reaches: incrowd serve --nginx writes the way in for others"
        )


def need_serving(store: str) -> None:
    """Refuse at once, by name, where what serves is not installed."""
    needed = {
        "uvicorn": "serve",
        "uvloop": "serve",
        "httptools": "serve",
        "starlette": "serve",
        "pydantic": "drawdiscard",
    }
    if store != "memory":
        needed |= {"hiredis": "redis", "redis": "redis"}
    for package, extra in needed.items():
        if find_spec(package) is None:
            raise ConfigError(field="package", value=package, remedy=f"pip install 'incrowd[{extra}]' brings it")


def token_of(path: Path) -> str:
    """The token in a file, which nobody but the user may read."""
    if not path.is_file():
        raise ConfigError(field="admin-token-file", value=str(path), remedy="there is no such file")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(field="admin-token-file", value=str(path), remedy=f"others may read it: chmod 600 {path}")
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        remedy = f"give at least {SHORTEST_TOKEN} printable characters: openssl rand -hex 32 > {path}"
        raise ConfigError(field="admin-token-file", value=f"{len(token)} characters", remedy=remedy)
    return token
