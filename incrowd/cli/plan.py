"""`incrowd plan`: what a budget buys."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from incrowd.cli._options import Json, numbers, whole_numbers
from incrowd.cli._print import print_json, print_table

app = typer.Typer()


class SamplingName(StrEnum):
    """Who takes part in a round."""

    POISSON = "poisson"
    FIXED = "fixed"
    EVERYONE = "everyone"
    LOCAL = "local"


class AccountantName(StrEnum):
    """Who states the price."""

    TIGHTEST = "tightest"
    GDP = "gdp"
    PLD = "pld"
    RDP = "rdp"


@app.command()
def plan(
    clients: Annotated[int, typer.Option(help="How many clients there are.")],
    epsilon: Annotated[float, typer.Option(help="The budget's epsilon.")],
    delta: Annotated[float, typer.Option(help="The budget's delta; well below 1/clients.")],
    rounds: Annotated[str, typer.Option(help="Rounds, one number or several: 10,54.")] = "",
    cohort: Annotated[str, typer.Option(help="Expected clients a round, one number or several.")] = "",
    noise: Annotated[
        float | None, typer.Option(help="Fix the noise multiplier; rounds or cohort are then found.")
    ] = None,
    sampling: Annotated[SamplingName, typer.Option(help="How a cohort is drawn.")] = SamplingName.POISSON,
    accountant: Annotated[AccountantName, typer.Option(help="Who states the price.")] = AccountantName.TIGHTEST,
    grow_from: Annotated[float | None, typer.Option(help="First cohort of a growing schedule.")] = None,
    weights: Annotated[int, typer.Option(help="Weights of the model, for the noise-to-signal ratio.")] = 1,
    moments: Annotated[bool, typer.Option("--moments", help="Add what the 2017 paper's accountant states.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the plans into this file.")] = None,
    as_json: Json = False,
) -> None:
    """What a budget buys: noise, rounds and cohort that spend it exactly.

    Example: incrowd plan --clients 1000 --epsilon 8 --delta 1e-5 --rounds 54 --cohort 220
    """
    from incrowd.privacy.survey import Wish, paper_row, row

    wish = Wish(
        clients=clients,
        epsilon=epsilon,
        delta=delta,
        rounds=whole_numbers("rounds", rounds),
        cohorts=numbers("cohort", cohort),
        noise_multiplier=noise,
        sampling=sampling.value,
        accountant=accountant.value,
        grow_from=grow_from,
    )
    plans = list(wish.plans())
    if plot is not None:
        from incrowd.runs.plots import draw_plans

        draw_plans(plot, plans)
    found = [row(plan, weights=weights) | (paper_row(plan) if moments else {}) for plan in plans]
    if as_json:
        print_json({"plans": found, "plot": None if plot is None else str(plot)})
    else:
        print_table(found, leave_out={"schedule", "by_accountant"})
