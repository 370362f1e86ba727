"""Draw and discard: `incrowd serve`, `contribute` and `ddml`."""

from collections.abc import Iterable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from incrowd.cli._options import Json, LogJson, argument, flag, need, option, words
from incrowd.cli._output import print_facts, print_result, print_table
from incrowd.errors import ConfigError

if TYPE_CHECKING:
    from incrowd.drawdiscard.policy import Policy

app = typer.Typer()
ddml = typer.Typer(
    help="Draw and discard, before any device is asked.\n\nExample: incrowd ddml simulate mail.json --csv mail.csv",
    no_args_is_help=True,
)


def _print_nginx(wanted: bool) -> None:
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
    log_json: LogJson = False,
    admission_key: Annotated[Path | None, option("The key of admission tokens; or DIR/admission.key.", "FILE")] = None,
    accepted_a_day: Annotated[int, option("Accepted contributions of one account in a day.")] = 1,
    open_admission: Annotated[bool, flag("--open-admission", "Admit anybody; one can spoil the model.")] = False,
    as_json: Json = False,
    _nginx: Annotated[
        bool,
        typer.Option("--nginx", is_eager=True, callback=_print_nginx, help="Only write an nginx.conf: TLS and limits."),
    ] = False,
) -> None:
    """Serve a specification: devices draw, learn, and send back. It prints where it listens; SIGTERM ends it.

    It listens on this machine only: nginx lets others in. A contribution needs a token: see `incrowd ddml token`.

    Example: incrowd serve mail.json --port 8000 --folder out/mail
    """
    need("serve", "uvicorn", "uvloop", "httptools", "starlette")
    need("drawdiscard", "pydantic")
    in_memory, pool = store == "memory", folder or specification.with_suffix(".pool")
    if not in_memory:
        need("redis", "hiredis", "redis")
    from incrowd.drawdiscard.specification import read_specification
    from incrowd.service.serving import ServiceOptions
    from incrowd.service.serving import serve as run

    if not in_memory and folder is not None:
        raise ConfigError(field="folder", value=str(folder), remedy="a pool in Redis has none: leave it out")
    if not in_memory and not open_admission and admission_key is None:
        remedy = "name the file of the key that signs admission tokens, or say --open-admission"
        raise ConfigError(field="admission-key", value=None, remedy=remedy)
    options = ServiceOptions(
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
    facts = {"fingerprint": options.specification.fingerprint, "store": "memory" if in_memory else "redis"}

    def listening(url: str) -> None:
        said = f"listens at {url}, which only this machine reaches: incrowd serve --nginx writes the way in for others"
        print_result({"url": url, **facts}, as_json, said)

    run(options, listening=listening)


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
    per: Annotated[Literal["model", "feature"], option("The unit of the limits: all or one number.")] = "model",
    whole: Annotated[float | None, option("The most that all of one may cost, whatever --per.")] = None,
    fields: Annotated[str, option("The columns that models may use, with commas; all without it.")] = "",
    jitter: Annotated[float, option("Wait a random time, at most this, before each contribution.", "SECONDS")] = 0.0,
    pace: Annotated[float | None, option("An answer leaves a multiple of this after its draw; 10.", "SECONDS")] = None,
    plain: Annotated[bool, flag("--plain", "Allow http to another machine, where others can pose as it.")] = False,
    token_file: Annotated[Path | None, option("The operator's admission token.", "FILE")] = None,
    check: Annotated[bool, flag("--check", "Only say how the specification fits; nothing is spent or sent.")] = False,
    as_json: Json = False,
) -> None:
    """Draw a model, learn on an own table, add noise, send the answer, and keep account of the cost.

    A paid answer that did not arrive waits beside the ledger, and goes first the next time.

    Example: incrowd contribute --server https://learn.example.org --database mail.sqlite --times 2 --jitter 600
    """
    need("drawdiscard", "pydantic")
    from incrowd.drawdiscard.device import Device
    from incrowd.service.remote import RemoteServer, take_turns

    place = ledger or database.with_name(database.name + ".ledger")
    limits = {"epsilon": epsilon, "daily_epsilon": daily, "whole_epsilon": whole}
    policy = _policy(place, limits, total=total, per=per, fields=fields)
    remote = RemoteServer(server, most_weights=policy.most_weights, plain=plain, pace_s=pace)
    if token_file is not None:
        token = token_file.read_text(encoding="utf-8").split() if token_file.is_file() else []
        if not token:
            raise ConfigError(field="token-file", value=str(token_file), remedy="name the file that holds the token")
        remote.admitted_by(token[-1])
    if check:
        _check(database, table, policy, remote.specification_json(), as_json=as_json)
        return
    with Device(database, table=table, ledger=place, policy=policy) as device:
        turns = take_turns(device, remote, times=times, jitter_s=jitter)
        facts = {
            "sent": turns.sent,
            "accepted": turns.accepted,
            "rejected": turns.sent - turns.accepted,
            "reasons": {reason.name.lower(): count for reason, count in turns.reasons.items()},
            "epsilon_spent": device.ledger.spent().epsilon,
            "epsilon_today": device.spent_today(),
            "epsilon_allowed": device.ledger.budget.epsilon,
        }
    print_result(facts, as_json)
    if turns.stopped is not None:
        raise turns.stopped


def _check(database: Path, table: str, policy: "Policy", text: str, *, as_json: bool) -> None:
    """Show the owner how the device's examples fit, on this screen alone."""
    from incrowd.drawdiscard.device import Device
    from incrowd.drawdiscard.specification import Specification
    from incrowd.privacy.ledger.ledger import Ledger
    from incrowd.privacy.mechanism.device import RELATION

    asked = Specification.from_json(text)
    unused = Ledger.in_memory(budget=policy.budget, relation=RELATION)
    with Device(database, table=table, ledger=unused, policy=policy) as device:
        fit = device.check(asked)
    facts = {"promise": asked.describe(), "examples": fit.examples, "usable": fit.usable}
    print_result(facts | {"problems": [*fit.problems]}, as_json, partial(_show_fit, facts, fit.problems))
    if not fit.usable or any(problem.startswith("refused") for problem in fit.problems):
        raise typer.Exit(1)


def _show_fit(facts: dict[str, Any], problems: Iterable[str]) -> None:
    print_facts(facts)
    for problem in problems:
        typer.echo(f"- {problem}")


def _policy(
    place: Path, limits: dict[str, float | None], *, total: float | None, per: Literal["model", "feature"], fields: str
) -> "Policy":
    """The owner's limits; an existing ledger states the total by default."""
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
    """Simulate draw and discard on a table, noise and all, to see what a specification would learn.

    Rows are dealt to devices, which contribute at random. The report compares the measures on held-out rows with those
    without noise and without a model, and counts the contributions needed. Nothing is written.

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
    print_result(report, as_json, partial(_show, report))


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
    print_result({"tokens": tokens}, as_json, partial(print_facts, tokens))


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
    _show_fit({"usable": f"{fit['usable']} of {fit['examples']} rows"}, fit["problems"])
