"""`incrowd contribute`: a device, for its owner."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from incrowd.cli._options import Json, words
from incrowd.cli._print import print_facts, print_json
from incrowd.errors import ConfigError

if TYPE_CHECKING:
    from incrowd.drawdiscard.policy import Policy
    from incrowd.service.remote import RemoteServer, Turns

app = typer.Typer()


@app.command()
def contribute(
    server: Annotated[str, typer.Option(metavar="URL", help="The service, say https://learn.example.org.")],
    database: Annotated[Path, typer.Option(metavar="FILE", help="The SQLite file with this device's examples.")],
    table: Annotated[str, typer.Option(help="The table or view of the examples.")] = "examples",
    times: Annotated[int, typer.Option(help="How many contributions, one after the other.")] = 1,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The device's ledger; FILE.sqlite.ledger without it.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The most that one contribution may cost.")] = None,
    daily: Annotated[float | None, typer.Option(help="The most that those of a day may cost.")] = None,
    total: Annotated[
        float | None, typer.Option(help="The most that all may ever cost; fixed when the ledger is begun.")
    ] = None,
    per: Annotated[
        Literal["model", "feature"],
        typer.Option(help="What these count: all numbers of a contribution together, or each on its own."),
    ] = "model",
    whole: Annotated[float | None, typer.Option(help="The most that all of one may cost, whatever --per.")] = None,
    fields: Annotated[str, typer.Option(help="The columns that models may use, with commas; all without it.")] = "",
    jitter: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait a random time, at most this, before each contribution.")
    ] = 0.0,
    pace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="An answer leaves this long after its draw, or a multiple of it; 10."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Allow http to another machine, where anybody on the way may pose as it.")
    ] = False,
    proxy: Annotated[
        str | None, typer.Option(metavar="URL", help="A proxy, say http://127.0.0.1:8118, to hide this address behind.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The operator's admission token.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only say how the service's specification fits; nothing is spent or sent.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Draw a model from a service, learn on an own table, add noise, send it back, and keep account of the cost.

    What is paid for and did not arrive waits beside the ledger, for weeks if need be, and goes first the next time.

    Example: incrowd contribute --server https://learn.example.org --database mail.sqlite --times 2 --jitter 600
    """
    _need_drawdiscard()
    from incrowd.drawdiscard.device import Device
    from incrowd.service.remote import RemoteServer, take_turns

    place = ledger or database.with_name(database.name + ".ledger")
    policy = _policy(
        place, {"epsilon": epsilon, "daily_epsilon": daily, "whole_epsilon": whole}, total=total, per=per, fields=fields
    )
    remote = RemoteServer(server, most_weights=policy.most_weights, plain=plain, proxy=proxy, pace_s=pace)
    _admit(remote, token_file)
    if check:
        _check(database, table, policy, remote.specification_json(), as_json=as_json)
        return
    with Device(database, table=table, ledger=place, policy=policy) as device:
        turns = take_turns(device, remote, times=times, jitter_s=jitter)
        found = _found(device, turns)
    print_json(found) if as_json else print_facts(found)
    if turns.stopped is not None:
        raise turns.stopped


def _admit(remote: "RemoteServer", token_file: Path | None) -> None:
    if token_file is None:
        return
    words = token_file.read_text(encoding="utf-8").split() if token_file.is_file() else []
    if not words:
        raise ConfigError(field="token-file", value=str(token_file), remedy="name the file that holds the token")
    remote.admitted_by(words[-1])


def _found(device: Any, turns: "Turns") -> dict[str, Any]:
    """What became of the contributions, and what the device has given by now."""
    return {
        "sent": turns.sent,
        "accepted": turns.accepted,
        "rejected": turns.sent - turns.accepted,
        "reasons": {reason.name.lower(): count for reason, count in turns.reasons.items()},
        "epsilon_spent": device.ledger.spent().epsilon,
        "epsilon_today": device.spent_today(),
        "epsilon_allowed": device.ledger.budget.epsilon,
    }


def _check(database: Path, table: str, policy: "Policy", text: str, *, as_json: bool) -> None:
    """How the device's examples fit, for its owner: on this screen and nowhere else."""
    from incrowd.drawdiscard.device import Device
    from incrowd.drawdiscard.specification import Specification
    from incrowd.privacy.ledger.ledger import Ledger
    from incrowd.privacy.mechanism.device import RELATION

    asked = Specification.from_json(text)
    unused = Ledger.in_memory(budget=policy.budget, relation=RELATION)
    with Device(database, table=table, ledger=unused, policy=policy) as device:
        fit = device.check(asked)
    found = {"promise": asked.describe(), "examples": fit.examples, "usable": fit.usable, "problems": [*fit.problems]}
    if as_json:
        print_json(found)
    else:
        print_facts({name: found[name] for name in ("promise", "examples", "usable")})
        for problem in fit.problems:
            typer.echo(f"- {problem}")
    if not fit.usable or any(problem.startswith("refused") for problem in fit.problems):
        raise typer.Exit(1)


def _policy(
    place: Path, limits: dict[str, float | None], *, total: float | None, per: Literal["model", "feature"], fields: str
) -> "Policy":
    """What the owner allows; where the ledger is there and nothing is said of the total, it says it."""
    from incrowd.drawdiscard.policy import Policy
    from incrowd.privacy.account.accounting import Budget
    from incrowd.privacy.ledger.ledger import Ledger

    given: dict[str, Any] = {name: limit for name, limit in limits.items() if limit is not None}
    if total is not None:
        given["budget"] = Budget(epsilon=total, delta=Policy().budget.delta)
    elif place.exists():
        with Ledger.read(place) as begun:
            given["budget"] = begun.budget
    return Policy(**given, unit=per, fields=words(fields) or None)


def _need_drawdiscard() -> None:
    if find_spec("pydantic") is None:
        raise ConfigError(field="package", value="pydantic", remedy="pip install 'incrowd[drawdiscard]' brings it")
