"""`incrowd ledger`: show, verify and maintain privacy ledgers."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from incrowd.cli._options import DataFolder, Json, Overrides, WitnessOption, argument, flag, need_training, option
from incrowd.cli._output import print_facts, print_json, print_result, print_table
from incrowd.errors import ConfigError

if TYPE_CHECKING:
    from incrowd.privacy.ledger.ledger import Ledger
    from incrowd.privacy.ledger.registry import Registered

app = typer.Typer(
    help="Show, verify and maintain ledgers: one for one data set.\n\nExample: incrowd ledger verify shop.sqlite",
    no_args_is_help=True,
)

LedgerFile = Annotated[Path, argument("FILE", "The ledger, an SQLite file.")]
Target = Annotated[Path, argument("TO", "A new file.")]
Epsilon = Annotated[float, option("The budget of all that will ever be charged to it.")]
Delta = Annotated[float, option("Its delta, which every run on it has to have.")]
Relation = Literal["zero-out-one", "add-or-remove-one", "replace-one"]
RelationOption = Annotated[Relation | None, option("Without settings: what neighbours differ in.", None, "--relation")]
Unit = Literal["client", "record"]


@app.command("show")
def show(file: LedgerFile, as_json: Json = False) -> None:
    """List what was charged and what is reserved, and what it comes to.

    Example: incrowd ledger show out/demo/ledger.sqlite
    """
    from incrowd.privacy.ledger.ledger import Ledger
    from incrowd.privacy.ledger.ledger import verify as check

    facts: dict[str, Any] = dict(check(_there(file, may_be_gone=True)))
    if facts["intact"]:
        with Ledger.read(file) as ledger:
            facts |= _described(ledger)
            facts["entries"] = [asdict(entry) for entry in ledger.entries()]
    if as_json:
        print_json(facts)
    else:
        entries = facts.pop("entries", [])
        print_facts(facts)
        for entry in entries:
            typer.echo(f"{entry['position']:6}  {entry['at'][:19]}  {entry['kind']:8} {entry['body']}")
    if not facts["intact"]:
        raise typer.Exit(1)


@app.command("verify")
def verify(
    file: LedgerFile,
    head: Annotated[str | None, option("A head hash that you kept elsewhere.")] = None,
    as_json: Json = False,
) -> None:
    """Check the hashes, the witnesses and a head hash kept elsewhere. Exit status 1 when they do not hold.

    Example: incrowd ledger verify out/demo/ledger.sqlite
    """
    from incrowd.privacy.ledger.ledger import verify as check

    verification = dict(check(_there(file, may_be_gone=True), head=head))
    print_result(verification, as_json)
    if not verification["intact"]:
        raise typer.Exit(1)


@app.command("list")
def list_ledgers(as_json: Json = False) -> None:
    """List all ledgers that you have, each with its data, what is spent and where it is.

    Example: incrowd ledger list
    """
    from incrowd.privacy.ledger.home import Home

    ledgers = [_row(known) for known in Home.of_user().ledgers()]
    if as_json:
        print_json({"ledgers": ledgers})
    else:
        print_table(ledgers, leave_out={"names", "problem", "witness"})


@app.command("new")
def new(
    epsilon: Epsilon,
    delta: Delta,
    file: Annotated[Path | None, argument("[FILE]", "Where it shall be; in your state folder without it.")] = None,
    data_of: Annotated[Path | None, option("Settings that name the data.", "CONFIG", "--data-of")] = None,
    name: Annotated[str | None, option("Without settings: what the data are called (data.identity).")] = None,
    unit: Annotated[Unit, option("Without settings: client or record, who is protected.")] = "client",
    relation: RelationOption = None,
    witness: WitnessOption = None,
    override: Overrides = None,
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Begin the ledger of some data with a budget of your own, before the first run does with its own.

    Example: incrowd ledger new --data-of shop.toml --epsilon 20 --delta 1e-5 --witness /mnt/other/shop.witness
    """
    from incrowd.privacy.account.accounting import Budget
    from incrowd.privacy.content import DataIdentity
    from incrowd.privacy.ledger.home import Home

    budget = Budget(epsilon=epsilon, delta=delta)
    if data_of is not None:
        need_training()
        from incrowd.runs.config import tables
        from incrowd.runs.ledgers import begin_ledgers

        ledgers = begin_ledgers(
            tables(data_of, overrides=override or [], data=data), budget=budget, path=file, witness=witness
        )
    else:
        if name is None:
            raise ConfigError(field="name", value=name, remedy="give --data-of CONFIG, or --name and --unit")
        identity = DataIdentity(name=name, unit=unit)
        its = _relation(relation or "zero-out-one")
        ledgers = [Home.of_user().ledger_of(identity, budget=budget, relation=its, path=file, witness=witness)]
    _say(ledgers, as_json)


@app.command("include")
def include(
    data_of: Annotated[Path, option("Settings that name the data.", "CONFIG", "--data-of")],
    override: Overrides = None,
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Let a ledger go on for data that have changed and kept their name: the same people, some more, some corrected.

    Example: incrowd ledger include --data-of shop.toml
    """
    need_training()
    from incrowd.runs.config import tables
    from incrowd.runs.ledgers import include_data

    ledgers = include_data(tables(data_of, overrides=override or [], data=data))
    _say(ledgers, as_json)


@app.command("move")
def move(
    file: Annotated[Path, argument("FROM", "Where it is, or was before it was moved by hand.")],
    target: Annotated[Path, argument("TO", "Where it shall be; FROM once more for the witness.")],
    witness: WitnessOption = None,
    as_json: Json = False,
) -> None:
    """Move a ledger, its witness, or both, say the witness to another disk. Cut off anywhere, the same command goes on.

    Example: incrowd ledger move shop.sqlite /srv/ledgers/shop.sqlite --witness /mnt/other/shop.witness
    """
    from incrowd.privacy.ledger import home as ledgers

    _say([ledgers.move(ledgers.Home.of_user(), file, target, witness=witness)], as_json)


@app.command("backup")
def backup(file: LedgerFile, target: Target, as_json: Json = False) -> None:
    """Copy a ledger as it stands, also while it is in use. Nothing can be charged to the copy.

    Example: incrowd ledger backup shop.sqlite /mnt/other/shop-backup.sqlite
    """
    from incrowd.privacy.ledger import home as ledgers

    mark = ledgers.backup(_there(file), target)
    print_result({"backup": str(target), "entries": mark.entries, "head": mark.head}, as_json)


@app.command("restore")
def restore(
    file: Annotated[Path, argument("BACKUP", "What `incrowd ledger backup` wrote.")],
    target: Annotated[Path, argument("TO", "Where the lost ledger was.")],
    as_json: Json = False,
) -> None:
    """Put a backup back where its ledger was lost. One that lacks entries which were seen is refused.

    Example: incrowd ledger restore /mnt/other/shop-backup.sqlite shop.sqlite
    """
    from incrowd.privacy.ledger import home as ledgers

    mark = ledgers.restore(_there(file), target)
    print_result({"ledger": str(target), "entries": mark.entries, "head": mark.head}, as_json)


@app.command("release")
def release(
    file: LedgerFile,
    label: Annotated[str, argument("LABEL", "The reservation, as `incrowd ledger show` lists it.")],
    as_json: Json = False,
) -> None:
    """Give back the unspent reservation of a run; the run cannot go on afterwards.

    Example: incrowd ledger release shop.sqlite 5f0c6a2d9b1e4877
    """
    from incrowd.privacy.ledger.ledger import Ledger

    with Ledger.open(_there(file)) as ledger:
        ledger.release_reservation(label)
        reservation = asdict(ledger.reservation(label)) | {"epsilon": ledger.spent().epsilon}
    print_result({name: reservation[name] for name in ("label", "charged", "released", "epsilon")}, as_json)


@app.command("fresh")
def fresh(
    name: Annotated[str, argument("NAME", "The data, as `incrowd ledger list` names them.")],
    epsilon: Epsilon,
    delta: Delta,
    unit: Annotated[Unit, option("client or record, who is protected.")] = "client",
    relation: RelationOption = None,
    understand: Annotated[bool, flag("--i-understand", "Do not ask; forget the spent privacy for good.")] = False,
    released: Annotated[bool, option("The data were released without privacy before.")] = False,
    as_json: Json = False,
) -> None:
    """Begin a new ledger for data on which something was spent. This breaks the promise that the old one kept.

    The new ledger notes for good what it forgets.

    Example: incrowd ledger fresh /data/shop.csv --epsilon 8 --delta 1e-5
    """
    from incrowd.privacy.account.accounting import Budget
    from incrowd.privacy.content import DataIdentity
    from incrowd.privacy.ledger import home as ledgers

    home = ledgers.Home.of_user()
    _, known = home.found(DataIdentity(name=name, unit=unit))
    if known is None:
        raise ConfigError(field="NAME", value=name, remedy="no data are known by this name: see `incrowd ledger list`")
    if not understand:
        typer.echo(
            f"{known.path} has {known.mark.entries} entries. A new ledger would leave all that was spent on "
            f"{', '.join(known.names)} out of account: the people in the data would be promised less than they were.",
            err=True,
        )
        if typer.prompt("Type the name of the data to go on", err=True) != name:
            raise ConfigError(field="NAME", value=name, remedy="another name was typed, and nothing was done")
    its, budget = None if relation is None else _relation(relation), Budget(epsilon=epsilon, delta=delta)
    _say([ledgers.fresh(home, known, budget=budget, relation=its, released=released)], as_json)


def _row(known: "Registered") -> dict[str, Any]:
    """A ledger in the list, with the problem of one that is gone or not intact."""
    from incrowd.privacy.ledger.ledger import Ledger
    from incrowd.privacy.ledger.ledger import verify as check

    row: dict[str, Any] = {"intact": False, "problem": f"{known.path} is not there", "epsilon": None, "delta": None}
    budget = None
    if known.path.exists():
        row = check(known.path)
        if row["intact"]:
            with Ledger.read(known.path) as ledger:
                budget = ledger.budget.epsilon
    return {
        "name": known.names[0] if known.names else None,
        "names": list(known.names),
        "unit": known.unit,
        "spent": row["epsilon"],
        "budget": budget,
        "delta": row["delta"],
        "entries": known.mark.entries,
        "intact": row["intact"],
        "problem": row["problem"],
        "retired": known.retired,
        "ledger": str(known.path),
        "witness": str(known.witness),
    }


def _described(ledger: "Ledger") -> dict[str, Any]:
    """The terms and the reservations of a ledger."""
    its = ledger.data_identity
    return {
        "budget": {"epsilon": ledger.budget.epsilon, "delta": ledger.budget.delta},
        "relation": ledger.relation.name,
        "data": str(its),
        "public": its.public,
        "unit": its.unit,
        "division": its.division,
        "id": ledger.id,
        "forgets": [vars(each) for each in ledger.forgets],
        "reserved": {
            each.label: f"{each.charged} of {each.events} charged{', released' * each.released}"
            for each in ledger.reservations()
        },
    }


def _there(file: Path, *, may_be_gone: bool = False) -> Path:
    """A ledger's file. Edge cases: a folder, or nothing there: `ConfigError`."""
    if file.is_dir():
        remedy = f"it is a folder: name the ledger itself, say {file / 'ledger.sqlite'}"
        raise ConfigError(field="FILE", value=str(file), remedy=remedy)
    if not may_be_gone and not file.exists():
        raise ConfigError(field="FILE", value=str(file), remedy="nothing is there: see `incrowd ledger list`")
    return file


def _relation(word: Relation) -> Any:
    from incrowd.privacy.statement import RELATIONS

    return {words.replace(" ", "-"): relation for relation, words in RELATIONS.items()}[word]


def _say(ledgers: "list[Registered]", as_json: bool) -> None:
    """One ledger's facts, or those of several."""
    facts = [
        {
            "ledger": str(each.path),
            "witness": str(each.witness),
            "data": list(each.names),
            "unit": each.unit,
            "entries": each.mark.entries,
        }
        for each in ledgers
    ]
    if as_json:
        print_json(facts[0] if len(facts) == 1 else {"ledgers": facts})
        return
    for each in facts:
        print_facts(each)
