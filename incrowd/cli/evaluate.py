"""`incrowd evaluate`: how good a run's model is on the clients' own examples, noised and paid for."""

from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import Json, need_training
from incrowd.cli._print import print_facts, print_json, short

app = typer.Typer()


@app.command("evaluate")
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run that is over.")],
    epsilon: Annotated[float, typer.Option(help="What it may cost, beside all that was spent.")],
    delta: Annotated[float | None, typer.Option(help="Its delta; without it, the ledger's.")] = None,
    loss_bound: Annotated[
        float | None, typer.Option(help="Measure the loss, too: no example counts for more than this public number.")
    ] = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="Figures class by class, too.")] = False,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Of a run that was served: the server's keys; the parties are asked."),
    ] = None,
    port: Annotated[int, typer.Option(help="With keys: the port to listen at, on loopback.")] = 9091,
    least: Annotated[int | None, typer.Option(help="With keys: ask when so many parties are there.")] = None,
    as_json: Json = False,
) -> None:
    """Measure a run's model on its clients' own examples: one more round, noised, and charged to the data's ledger.

    Each client counts the same, and who is not there counts as one half. The ledger needs room for it beside the
    run's own rounds: begin the run with privacy.room, or the ledger with incrowd ledger new.

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
