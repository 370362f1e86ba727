"""`incrowd privacy`: what a way of learning promises, to whom."""

from typing import Annotated

import typer

from incrowd import _validate
from incrowd.cli._options import Json
from incrowd.cli._print import print_facts, print_json

_MOST = 700.0

app = typer.Typer(
    help="What a way of learning promises, and to whom.\n\nExample: incrowd privacy ddml --k 20 --epsilon 2",
    no_args_is_help=True,
)


@app.command("ddml")
def ddml(
    k: Annotated[int, typer.Option("--k", help="Instances in the pool.")],
    epsilon: Annotated[float, typer.Option(help="What one update may cost.")],
    updates_since: Annotated[int, typer.Option(help="Updates to the pool before the opportunist looks.")],
    delta: Annotated[float, typer.Option(help="The chance that the opportunist's bound fails.")] = 1e-8,
    gamma: Annotated[float, typer.Option(help="The learning rate, for the scale of the noise.")] = 0.001,
    clip: Annotated[float, typer.Option(help="The bound on the gradient, for the scale of the noise.")] = 1.0,
    weights: Annotated[int, typer.Option(help="Weights of the model: what a whole model costs.")] = 1,
    unit: Annotated[
        str, typer.Option(help="What epsilon is about: feature, model, or l1 (the model, by a clip of the L1 norm).")
    ] = "feature",
    as_json: Json = False,
) -> None:
    """What draw and discard promises against its three adversaries, for one update of one device.

    Example: incrowd privacy ddml --k 20 --epsilon 3.47 --updates-since 100000 --weights 387
    """
    from incrowd.drawdiscard.adversaries import Situation, adversaries

    _validate.count(k=k)
    _validate.positive(gamma=gamma, epsilon=epsilon)
    _validate.at_most(_MOST, "what a computer can exponentiate", epsilon=epsilon)
    situation = Situation(
        instances=k,
        epsilon=epsilon,
        updates_since=updates_since,
        delta=delta,
        learning_rate=gamma,
        clip=clip,
        weights=weights,
        unit=unit,
    )
    rows = adversaries(situation)
    if as_json:
        print_json({"adversaries": rows})
        return
    for number, view in enumerate(rows):
        if number:
            typer.echo()
        paper = {f"paper's, {name}": value for name, value in view.pop("paper", {}).items()}
        print_facts({name.replace("_", " "): value for name, value in (view | paper).items()})
