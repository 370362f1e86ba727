"""Results: `incrowd list`, `export`, `predict`, `report`, `watch`, `audit` and `evaluate`."""

import json
import os
import signal
import sys
import webbrowser
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from incrowd import _files
from incrowd.cli._options import DataFolder, Json, Metrics, Overrides, argument, flag, need, need_training, option
from incrowd.cli._output import print_facts, print_json, print_metrics, print_result, print_table, short
from incrowd.errors import ConfigError, IncrowdError

if TYPE_CHECKING:
    from incrowd.audit.bounds import Audited

app = typer.Typer()

EGRESS = "egress.html"
WATCHED = {"rounds": "Finished rounds.", "epsilon": "Epsilon so far.", "over": "Whether it is over."}


@app.command("list")
def list_runs(
    folder: Annotated[Path, argument("[DIR]", "Where to look.")] = Path("out"),
    metrics: Metrics = False,
    as_json: Json = False,
) -> None:
    """List the runs and searches below a folder: whom each protects, how far it has got, what it has spent.

    Example: incrowd list out
    """
    need_training()
    if not folder.is_dir():
        raise ConfigError(field="folder", value=str(folder), remedy="name a folder with runs in it")
    rows = list(_rows(folder))
    if as_json:
        print_json({"runs": rows})
    elif metrics:
        over = {row["run"]: int(row["state"] in ("over", "a search, over")) for row in rows}
        figures = {name: {row["run"]: row[name] for row in rows} for name in ("rounds", "epsilon")}
        print_metrics("incrowd_run", WATCHED, "run", {**figures, "over": over})
    elif rows:
        for row in rows:
            row["randomness"] = {None: None, True: "seeded", False: "system"}[row["simulated"]]
        print_table([{name: short(value) for name, value in row.items()} for row in rows], leave_out={"simulated"})
    else:
        typer.echo(f"no run below {folder}; start one with: incrowd train")


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each run and each search below a folder, by name; one that cannot be read has a row with the reason."""
    from incrowd.report.shown import read
    from incrowd.runs.folder import DATABASE, SEARCH

    for place, folders, files in os.walk(folder):
        folders.sort()
        if not {DATABASE, SEARCH} & set(files):
            continue
        folders.clear()
        names = ("unit", "state", "rounds", "epsilon", "delta", "simulated", "data")
        row: dict[str, Any] = {"run": place, **dict.fromkeys(names)}
        try:
            one = read(Path(place), live=True)
        except IncrowdError as error:
            yield row | {"state": f"cannot be read: {error}"}
            continue
        done = len(one.rounds)
        if one.kind == "search":
            row["state"] = f"a search, {'over' if one.over else 'not over'}"
        else:
            row |= {"rounds": done, "state": "over" if one.over else f"after {done} of {one.planned} rounds"}
        yield row | {name: getattr(one, name) for name in ("unit", "epsilon", "delta", "simulated", "data")}


@app.command("export")
def export_run(
    folder: Annotated[Path, argument("DIR", "The folder of a run, or of a search.")],
    out: Annotated[Path, argument("OUT", "A new folder.")],
    purpose: Annotated[Literal["egress"] | None, option("egress: add a page to file.", None, "--for")] = None,
    as_json: Json = False,
) -> None:
    """Copy the public part of a run that is over: model, statement, result, privacy spent.

    Example: incrowd export out/run-1 to-publish --for egress
    """
    need_training()
    from incrowd.runs.folder import export

    files = export(folder, out)
    if purpose is not None:
        from incrowd.report.page import page
        from incrowd.report.shown import read_all

        (out / EGRESS).write_text(page(read_all([folder])), encoding="utf-8")
        _files.undate(out / EGRESS)
        _files.undate(out)
        files.append(EGRESS)
    said = "\n  ".join([f"{out} holds what may be handed on:", *files])
    print_result({"files": files, "out": str(out)}, as_json, said=said)


@app.command("predict")
def predict_table(
    folder: Annotated[Path, argument("DIR", "The folder of a run that is over.")],
    table: Annotated[Path, argument("TABLE", "A .csv, .csv.gz or .parquet file.")],
    out: Annotated[Path | None, option("A new .csv file for the predictions.", "FILE")] = None,
    as_json: Json = False,
) -> None:
    """Predict each row of a table with a run's model. The run's folder is enough.

    The run's settings explain the columns by name; labels and clients may be missing. The output is a table of an id,
    the prediction, and the probability of each class. The id is the cell in the column "id" or the client column, or
    the row's number.

    Example: incrowd predict out/visits new-visits.csv --out predictions.csv
    """
    need_training()
    if out is not None and (out.exists() or out.is_symlink()):
        raise ConfigError(field="out", value=str(out), remedy="it is there already: name a new file")
    from incrowd.runs.predict import predict

    predictions = predict(folder, table)
    if out is not None:
        _files.folder(out.parent)
        _files.write(out, predictions.to_csv())
    said = f"{out} holds {len(predictions.labels)} predictions"
    if out is None and not as_json:
        said = predictions.to_csv().removesuffix("\n")
    print_result(predictions.to_json() | {"out": None if out is None else str(out)}, as_json, said=said)


@app.command("report")
def report(
    folders: Annotated[list[Path], argument("DIR...", "Folders of runs, searches or servers, or ledgers.")],
    out: Annotated[Path, option("The .html file to write.", "FILE")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write one page with result and promise: a file that loads nothing, to read, print or publish.

    It holds the public part of a run (incrowd export) and nothing else; several runs are side by side. Runs need not be
    over.

    Example: incrowd report out/run-1 --out report.html
    """
    need_training()
    from incrowd.report.page import page
    from incrowd.report.shown import read_all

    if out.suffix != ".html" or out.is_dir() or not out.absolute().parent.is_dir():
        remedy = "name a file that ends in .html, in a folder that is there"
        raise ConfigError(field="out", value=str(out), remedy=remedy)
    shown = read_all(folders)
    text = page(shown)
    _files.write(out, text)
    runs = [{"name": one.name, "kind": one.kind, "over": one.over, "epsilon": one.epsilon} for one in shown]
    size, names = len(text.encode()), ", ".join(one.name for one in shown)
    facts = {"report": str(out), "bytes": size, "runs": runs}
    print_result(facts, as_json, said=f"{out} shows {names}: one file of {size / 1000:,.0f} kB")


@app.command("watch")
def watch(
    places: Annotated[list[str], argument("DIR|URL...", "Folders of runs or servers, or of these; or a server.")],
    port: Annotated[int, option("0 takes a free one.")] = 0,
    open_page: Annotated[bool, flag("--open", "Open the page in a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Serve the page of a report live: rounds appear as they are written down.

    Watch a run, a search, a pool, `incrowd flower serve`, a folder of these where new ones appear, or the address of
    `incrowd serve`. Only this machine can read the page. SIGTERM ends it.

    Example: incrowd watch out --open
    """
    need_training()
    need("serve", "uvicorn", "starlette")
    from incrowd.report import watching

    def listening(url: str) -> None:
        print_result({"url": url}, as_json, said=f"watch at {url}")
        if open_page:
            webbrowser.open(url)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the server hears it, and sends it on in the end
    try:
        watching.watch(places, port=port, listening=listening)
    finally:
        signal.signal(signal.SIGTERM, before)


RESULT = "audit.json"


@app.command("audit")
def audit(
    source: Annotated[Path | None, argument("[CONFIG|DIR]", "Settings, a specification, a run; or the demo.")] = None,
    override: Overrides = None,
    data: DataFolder = None,
    canaries: Annotated[int | None, option("Canary clients in all; 20,000 unless it is given.")] = None,
    repeats: Annotated[int | None, option("How often the federation is played instead.")] = None,
    seed: Annotated[int, option("Of the simulations.")] = 0,
    quick: Annotated[bool, flag("--quick", "A fifth of the canaries: weaker, and sooner done.")] = False,
    out: Annotated[Path | None, option(f"Write {RESULT} there.", "DIR")] = None,
    as_json: Json = False,
) -> None:
    """Attack simulations of a federation, and compare the measured leak with the promise.

    It attacks whole clients, records in silos, and a draw-and-discard specification. It opens no ledger and spends
    nothing. Exit status 1 says that the leak exceeds the promise; standard error says where.

    Example: incrowd audit examples/mnist.toml --data data --out out/audit
    """
    need_training()
    from incrowd.audit.audit import Effort
    from incrowd.audit.audit import audit as run

    if out is not None and (out / RESULT).exists():
        raise ConfigError(field="out", value=str(out), remedy=f"it holds {RESULT}: name another folder")
    effort = Effort(canaries=canaries, repeats=repeats, seed=seed, quick=quick)
    found = run(source, overrides=override or [], data=data, effort=effort)
    content = found.to_json()
    if out is not None:
        _files.folder(out)
        _files.write(out / RESULT, json.dumps(content, indent=1, allow_nan=False))
    print_result(content, as_json, partial(_show_audit, found, content))
    if not found.holds:
        typer.echo(f"incrowd: the promise does not hold: {'; '.join(found.violations)}", err=True)
        raise typer.Exit(1)


def _show_audit(found: "Audited", content: dict[str, Any]) -> None:
    """Print the verdict, then the findings of attacks and checks."""
    best = found.best
    proven = "nothing" if best is None else f"at least {short(best.lower_bound)}, with {best.confidence:.0%} confidence"
    print_facts(
        {
            "promised": f"epsilon = {short(found.claimed)} at delta = {short(found.delta)}",
            "found out": proven,
            "verdict": "the promise holds against all that was tried" if found.holds else "THE PROMISE DOES NOT HOLD",
            "what it is": content["simulated"],
            **{f"note {place}": note for place, note in enumerate(found.notes, 1)},
        }
    )
    typer.echo("")
    print_table(content["findings"], leave_out=("unit", "delta", "sure_bound", "confidence", "note"))
    print_table(content["checks"])


@app.command("evaluate")
def evaluate(
    folder: Annotated[Path, argument("DIR", "The folder of a run that is over.")],
    epsilon: Annotated[float, option("What it may cost, beside all that was spent.")],
    delta: Annotated[float | None, option("Its delta; without it, the ledger's.")] = None,
    loss_bound: Annotated[float | None, option("Measure the loss, too, cut off at this public number.")] = None,
    by_class: Annotated[bool, flag("--by-class", "Figures class by class, too.")] = False,
    keys: Annotated[Path | None, option("The server's keys, to ask the parties of a served run.", "DIR")] = None,
    port: Annotated[int, option("With keys: the port to listen at, on loopback.")] = 9091,
    least: Annotated[int | None, option("With keys: ask when so many parties are there.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a run's model on its clients' own examples: one more round, noised, and charged to the data's ledger.

    Each client counts the same, and an absent one as one half. The ledger needs room beside the run's own rounds: begin
    the run with privacy.room, or the ledger with incrowd ledger new.

    Example: incrowd evaluate out/mnist --epsilon 0.5
    """
    need_training()
    from incrowd.runs.evaluation import EvaluationConfig
    from incrowd.runs.run import Run

    wanted = EvaluationConfig(epsilon=epsilon, delta=delta, loss_bound=loss_bound, by_class=by_class)
    run = Run.open(folder)
    if keys is None:
        found = run.evaluate(wanted)
    else:
        from incrowd.flower import need_flower

        need_flower()
        from incrowd.flower.serve import PartyServer

        found = PartyServer(keys=keys, port=port, least=least).evaluate(run, wanted)
    if as_json:
        print_json(found)
        return
    facts: dict[str, str] = {
        name: f"{short(found[name])}, give or take {found[f'{name}_std']:.2g} from noise (one standard deviation)"
        for name in ("accuracy", "loss")
        if name in found
    }
    if by_class:
        facts["balanced accuracy"] = str(short(found["balanced_accuracy"]))
        facts |= {f"recall of {row['class']}": str(short(row["recall"])) for row in found["by_class"]}
    facts["this cost"] = f"epsilon = {found['epsilon']:.6g} at delta = {found['delta']:g}"
    facts["all together"] = f"epsilon = {found['epsilon_of_all']:.6g}"
    print_facts(facts)
    typer.echo(f"\nWhat it is: {found['measured']}.\n\n{found['statement']['text']}")
