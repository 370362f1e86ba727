"""Draw and discard: `incrowd serve`, `contribute` and `ddml`."""

from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from incrowd.cli._shared import Json, argument, need, option, print_facts, print_json, print_result, print_table, words
from incrowd.errors import ConfigError

if TYPE_CHECKING:
    from incrowd.drawdiscard.policy import Policy
    from incrowd.service.remote import RemoteServer, Turns

app = typer.Typer()
ddml = typer.Typer(
    help="Draw and discard, before any device is asked.\n\nExample: incrowd ddml simulate mail.json --csv mail.csv",
    no_args_is_help=True,
)

NO_KEY = "name the file of the key that signs admission tokens, or say --open-admission"


def _nginx(wanted: bool) -> None:
    if wanted:
        typer.echo((resources.files("incrowd.service") / "nginx.conf").read_text(encoding="utf-8"), nl=False)
        raise typer.Exit


@app.command()
def serve(
    specification: Annotated[Path, argument("SPEC", "The specification, a JSON or TOML file.")],
    store: Annotated[str, option("memory, redis://, rediss:// or unix:// of a Redis.", "URL")] = "memory",
    folder: Annotated[Path | None, option("Where a pool in memory is kept; without it, SPEC.pool.", "DIR")] = None,
    host: Annotated[str, option("The address to listen at, of this machine only: nginx is the way in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
    workers: Annotated[int, option("Processes; more than one need a Redis.")] = 1,
    keep_every: Annotated[float, option("Seconds between two keeps of a pool in memory.")] = 5.0,
    remember_mb: Annotated[float, option("Memory for replaced versions: late answers need theirs.")] = 64.0,
    turned_away: Annotated[float, option("The share of honest answers that may be turned away.")] = 0.01,
    log_json: Annotated[bool, option("Write one JSON line an event on standard error.", None, "--log-json")] = False,
    admission_key: Annotated[
        Path | None, option("The key that signs admission tokens; DIR/admission.key without it.", "FILE")
    ] = None,
    accepted_a_day: Annotated[int, option("So many contributions of one account are accepted in a day.")] = 1,
    open_admission: Annotated[
        bool, option("Take contributions from anybody: one address can spoil the model.", None, "--open-admission")
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
        log_json=log_json,
    )
    if not open_admission:
        options = options.admitting(admission_key or pool / "admission.key", daily=accepted_a_day)
    told = {"fingerprint": options.specification.fingerprint, "store": "memory" if in_memory else "redis"}
    serving.serve(options, listening=partial(_say, told, as_json=as_json))


def _say(told: dict[str, str], url: str, *, as_json: bool) -> None:
    """Where it listens."""
    said = f"listens at {url}, which only this machine reaches: incrowd serve --nginx writes the way in for others"
    print_result({"url": url} | told, as_json, said=said)


def need_serving(store: str) -> None:
    """Refuse at once where the packages that serve are not installed."""
    need("serve", "uvicorn", "uvloop", "httptools", "starlette")
    need("drawdiscard", "pydantic")
    if store != "memory":
        need("redis", "hiredis", "redis")


@app.command()
def contribute(
    server: Annotated[str, option("The service, say https://learn.example.org.", "URL")],
    database: Annotated[Path, option("The SQLite file with this device's examples.", "FILE")],
    table: Annotated[str, option("The table or view of the examples.")] = "examples",
    times: Annotated[int, option("How many contributions, one after the other.")] = 1,
    ledger: Annotated[Path | None, option("The device's ledger; FILE.sqlite.ledger without it.", "FILE")] = None,
    epsilon: Annotated[float | None, option("The most that one contribution may cost.")] = None,
    daily: Annotated[float | None, option("The most that those of a day may cost.")] = None,
    total: Annotated[float | None, option("The most that all may ever cost; fixed when the ledger is begun.")] = None,
    per: Annotated[
        Literal["model", "feature"],
        option("What these count: all numbers of a contribution together, or each on its own."),
    ] = "model",
    whole: Annotated[float | None, option("The most that all of one may cost, whatever --per.")] = None,
    fields: Annotated[str, option("The columns that models may use, with commas; all without it.")] = "",
    jitter: Annotated[float, option("Wait a random time, at most this, before each contribution.", "SECONDS")] = 0.0,
    pace: Annotated[
        float | None, option("An answer leaves this long after its draw, or a multiple of it; 10.", "SECONDS")
    ] = None,
    plain: Annotated[
        bool, option("Allow http to another machine, where anybody on the way may pose as it.", None, "--plain")
    ] = False,
    token_file: Annotated[Path | None, option("The operator's admission token.", "FILE")] = None,
    check: Annotated[
        bool, option("Only say how the service's specification fits; nothing is spent or sent.", None, "--check")
    ] = False,
    as_json: Json = False,
) -> None:
    """Draw a model from a service, learn on an own table, add noise, send it back, and keep account of the cost.

    What is paid for and did not arrive waits beside the ledger, for weeks if need be, and goes first the next time.

    Example: incrowd contribute --server https://learn.example.org --database mail.sqlite --times 2 --jitter 600
    """
    need("drawdiscard", "pydantic")
    from incrowd.drawdiscard.device import Device
    from incrowd.service.remote import RemoteServer, take_turns

    place = ledger or database.with_name(database.name + ".ledger")
    policy = _policy(
        place, {"epsilon": epsilon, "daily_epsilon": daily, "whole_epsilon": whole}, total=total, per=per, fields=fields
    )
    remote = RemoteServer(server, most_weights=policy.most_weights, plain=plain, pace_s=pace)
    _admit(remote, token_file)
    if check:
        _check(database, table, policy, remote.specification_json(), as_json=as_json)
        return
    with Device(database, table=table, ledger=place, policy=policy) as device:
        turns = take_turns(device, remote, times=times, jitter_s=jitter)
        found = _found(device, turns)
    print_result(found, as_json)
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


@ddml.callback()
def root() -> None:
    """Draw and discard, before any device is asked.

    Example: incrowd ddml simulate mail.json --csv mail.csv
    """


@ddml.command("simulate")
def simulate(
    specification: Annotated[Path, argument("SPEC", "A .json or .toml file: see `incrowd serve`.")],
    csv: Annotated[Path, option("A table like those of the devices, put together.", "FILE", "--csv")],
    contributions: Annotated[int, option("How many contributions devices make, all together.")] = 10_000,
    epsilon: Annotated[float | None, option("Another epsilon than the specification's.")] = None,
    devices: Annotated[
        int | None, option("How many devices share the rows; by default each has what one contribution uses.")
    ] = None,
    held_out: Annotated[float, option("The share of the rows that is kept to measure with.")] = 0.2,
    seed: Annotated[int, option("The same seed gives the same figures.")] = 0,
    as_json: Json = False,
) -> None:
    """What a specification would learn from a table at its epsilon: a simulation of the protocol, noise and all.

    Rows are dealt to devices, which contribute at random. Beside the measures on held-out rows stand those without
    noise and without a model, how many contributions it takes, and what of the table does not fit. Nothing is written.

    Example: incrowd ddml simulate mail.toml --csv mails.csv --contributions 20000 --epsilon 4
    """
    need("drawdiscard", "pydantic")
    from incrowd.drawdiscard.rehearsal import Rehearsal
    from incrowd.drawdiscard.source import read_csv_columns
    from incrowd.drawdiscard.specification import Specification, read_specification

    asked = read_specification(specification)
    if epsilon is not None:
        asked = Specification.of(asked.model_dump(mode="json") | {"epsilon": epsilon})
    rehearsal = Rehearsal(
        asked=asked,
        table=read_csv_columns(csv, asked),
        contributions=contributions,
        devices=devices,
        held_out=held_out,
        seed=seed,
    )
    report = rehearsal.report()
    print_json(report) if as_json else _show(report)


@ddml.command("token")
def token(
    accounts: Annotated[list[str], argument("ACCOUNT...", "Letters, digits, _ or -.")],
    key: Annotated[Path, option("The service's admission key; made if there is none.", "FILE")],
    as_json: Json = False,
) -> None:
    """Issue admission tokens: each lets one account contribute, as often in a day as the service allows.

    Example: incrowd ddml token --key mail.pool/admission.key ann bob
    """
    from incrowd.service.admission import Admission, key_in

    admission = Admission(key=key_in(key))
    tokens = {account: admission.token(account) for account in accounts}
    print_json({"tokens": tokens}) if as_json else print_facts(tokens)


def _show(report: dict[str, Any]) -> None:
    typer.echo("SIMULATION: the rows are real, the noise is seeded, and nobody contributed.\n")
    beside = "contributions_needed", "contributions_of_a_device", "devices", "examples_of_a_device", "weights"
    facts = {name: report[name] for name in (*beside, "epsilon", "promise")}
    print_facts({name.replace("_", " "): value for name, value in facts.items()})
    typer.echo()
    rows = {"no model": "baseline", "learnt": "metrics", "without noise": "without_noise"}
    print_table([{"": label} | report[key] for label, key in rows.items()])
    print_table(report["curve"])
    fit = report["fit"]
    typer.echo(f"{fit['usable']} of {fit['examples']} rows can be learnt from")
    for problem in fit["problems"]:
        typer.echo(f"- {problem}")
