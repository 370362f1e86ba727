"""`incrowd plan`: what a budget buys."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from incrowd.cli._options import Json, numbers, whole_numbers, words
from incrowd.cli._print import print_json, print_table
from incrowd.errors import ConfigError

if TYPE_CHECKING:
    from incrowd.privacy.plan.plan import Plan

app = typer.Typer()


class SamplingName(StrEnum):
    """Who takes part in a round."""

    POISSON = "poisson"
    FIXED = "fixed"
    EVERYONE = "everyone"


class NoiseByName(StrEnum):
    """Who adds the noise."""

    SERVER = "server"
    PARTY = "party"
    PARTIES = "parties"


class AccountantName(StrEnum):
    """Who states the price."""

    TIGHTEST = "tightest"
    GDP = "gdp"
    PLD = "pld"
    RDP = "rdp"


@app.command()
def plan(
    clients: Annotated[str, typer.Option(help="How many clients there are. What if? Several: 100,1000.")],
    delta: Annotated[str, typer.Option(help="The budget's delta, or several; well below 1/clients.")],
    epsilon: Annotated[
        str,
        typer.Option(help="The budget's epsilon, or several; found where noise, rounds and cohort are given."),
    ] = "",
    rounds: Annotated[str, typer.Option(help="Rounds, one number or several: 10,54.")] = "",
    cohort: Annotated[str, typer.Option(help="Expected clients a round, one number or several: 50,20%.")] = "",
    noise: Annotated[
        float | None, typer.Option(help="Fix the noise multiplier; rounds, cohort or epsilon is then found.")
    ] = None,
    sampling: Annotated[SamplingName, typer.Option(help="How a cohort is drawn.")] = SamplingName.POISSON,
    noise_by: Annotated[
        NoiseByName,
        typer.Option(help="Who adds the noise: the server, every client for itself, or all clients, a share each."),
    ] = NoiseByName.SERVER,
    colluders: Annotated[
        int | None, typer.Option(help="With parties: how many may work together with the server; 1.")
    ] = None,
    accountant: Annotated[AccountantName, typer.Option(help="Who states the price.")] = AccountantName.TIGHTEST,
    grow_from: Annotated[float | None, typer.Option(help="First cohort of a growing schedule.")] = None,
    weights: Annotated[int, typer.Option(help="Weights of the model, for the noise-to-signal ratio.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Draw the plans into this file.")] = None,
    as_json: Json = False,
) -> None:
    """What a budget buys: noise, rounds and cohort that spend it exactly.

    Example: incrowd plan --clients 1000 --epsilon 8 --delta 1e-5 --rounds 54 --cohort 220

    Several rounds and cohorts are ranked by the noise of all rounds beside what they can learn. odds is how often an
    attacker is right at most, who knows all about everyone else.

    What if: incrowd plan --clients 100,1000 --epsilon 1,2,4,8 --delta 1e-5 --plot plans.png
    """
    from incrowd.privacy.plan.planner import Comparison

    wanted = Comparison(
        clients=_some("clients", whole_numbers, clients),
        epsilons=_some("epsilon", numbers, epsilon) if epsilon else (None,),
        deltas=_some("delta", numbers, delta),
        rounds=whole_numbers("rounds", rounds),
        cohorts=numbers("cohort", ",".join(word for word in words(cohort) if not word.endswith("%"))),
        shares=tuple(
            part / 100 for word in words(cohort) if word.endswith("%") for part in numbers("cohort", word.rstrip("%"))
        ),
        noise_multiplier=noise,
        sampling=sampling.value if noise_by is NoiseByName.SERVER else "everyone",
        noise_by=noise_by.value,
        colluders=colluders,
        accountant=accountant.value,
        grow_from=grow_from,
    )
    plans = list(wanted.plans())
    if plot is not None:
        from incrowd.runs.plots import plot_plans

        plot_plans(plot, plans, weights=weights)
    rows = _rows(plans, several=wanted.several, weights=weights)
    if as_json:
        print_json({"plans": rows, "plot": None if plot is None else str(plot)})
    else:
        rows.sort(key=lambda one: one.get("rank", 0))
        hidden = {"schedule", "by_accountant", "over_all_rounds", "sensitivity_in_clips"}
        hidden |= {"sampling", "noise_by"} if wanted.several else set()
        hidden |= set() if noise_by is NoiseByName.PARTIES else {"colluders"}
        print_table(rows, leave_out=hidden)


def _rows(plans: "list[Plan]", *, several: bool, weights: int) -> list[dict[str, Any]]:
    """A row for each plan; those that answer the same question are ranked."""
    from incrowd.privacy.plan.planner import ranked, row

    rows = [(_what_if(plan) if several else {}) | row(plan, weights=weights) for plan in plans]
    if len(rows) > 1 and not several:
        return [{"rank": rank} | one for rank, one in zip(ranked(plans), rows, strict=True)]
    return rows


T = TypeVar("T")


def _some(field: str, read: Callable[[str, str], tuple[T, ...]], text: str) -> tuple[T, ...]:
    values = read(field, text)
    if not values:
        raise ConfigError(field=field, value=text, remedy="give a number, or several with commas between")
    return values


def _what_if(plan: "Plan") -> dict[str, Any]:
    """What tells a plan from the others where more than rounds and cohorts differ."""
    return {"clients": plan.config.members, "budget_epsilon": plan.budget.epsilon}
