"""Before a run: `incrowd plan`, `init` and `privacy`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from incrowd import _files, _validate
from incrowd.cli._options import Json, argument, numbers, option, whole_numbers, words
from incrowd.cli._output import print_facts, print_json, print_result, print_table
from incrowd.errors import ConfigError

if TYPE_CHECKING:
    from incrowd.privacy.plan.plan import Plan

app = typer.Typer()
privacy = typer.Typer(
    help="The promises of draw and discard.\n\nExample: incrowd privacy ddml --k 20 --epsilon 2", no_args_is_help=True
)


@app.command()
def plan(
    clients: Annotated[str, option("How many clients there are. What if? Several: 100,1000.")],
    delta: Annotated[str, option("The budget's delta, or several; well below 1/clients.")],
    epsilon: Annotated[str, option("The budget's epsilon, or several; found from noise, rounds, cohort.")] = "",
    rounds: Annotated[str, option("Rounds, one number or several: 10,54.")] = "",
    cohort: Annotated[str, option("Expected clients a round, one number or several: 50,20%.")] = "",
    noise: Annotated[float | None, option("Fix the noise multiplier; rounds, cohort or epsilon is then found.")] = None,
    sampling: Annotated[Literal["poisson", "fixed", "everyone"], option("How a cohort is drawn.")] = "poisson",
    noise_by: Annotated[
        Literal["server", "party", "parties"],
        option("Who adds the noise: the server, every client for itself, or all clients, a share each."),
    ] = "server",
    colluders: Annotated[int | None, option("With parties: how many may work together with the server; 1.")] = None,
    accountant: Annotated[Literal["tightest", "gdp", "pld", "rdp"], option("Who states the price.")] = "tightest",
    weights: Annotated[int, option("Weights of the model, for the noise-to-signal ratio.")] = 1,
    plot: Annotated[Path | None, option("Draw the plans into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Find the noise, rounds and cohort that spend a budget exactly.

    Example: incrowd plan --clients 1000 --epsilon 8 --delta 1e-5 --rounds 54 --cohort 220

    Several rounds and cohorts are ranked by their total noise relative to the signal. odds is the success rate of an
    attacker who knows everyone else's data, at most.

    What if: incrowd plan --clients 100,1000 --epsilon 1,2,4,8 --delta 1e-5 --plot plans.png
    """
    from incrowd.privacy.plan.planner import Comparison

    wanted = Comparison(
        clients=whole_numbers("clients", clients, least=1),
        epsilons=numbers("epsilon", epsilon, least=1) if epsilon else (None,),
        deltas=numbers("delta", delta, least=1),
        rounds=whole_numbers("rounds", rounds),
        cohorts=numbers("cohort", ",".join(word for word in words(cohort) if not word.endswith("%"))),
        shares=tuple(
            part / 100 for word in words(cohort) if word.endswith("%") for part in numbers("cohort", word.rstrip("%"))
        ),
        noise_multiplier=noise,
        sampling=sampling if noise_by == "server" else "everyone",
        noise_by=noise_by,
        colluders=colluders,
        accountant=accountant,
    )
    plans = list(wanted.plans())
    if plot is not None:
        from incrowd.runs.plots import plot_plans

        plot_plans(plot, plans, weights=weights)
    rows = _ranked(plans, several=wanted.several, weights=weights)
    if as_json:
        print_json({"plans": rows, "plot": None if plot is None else str(plot)})
    else:
        rows.sort(key=lambda one: one.get("rank", 0))
        hidden = {"schedule", "by_accountant", "over_all_rounds", "sensitivity_in_clips"}
        hidden |= {"sampling", "noise_by"} if wanted.several else set()
        hidden |= set() if noise_by == "parties" else {"colluders"}
        print_table(rows, leave_out=hidden)


def _ranked(plans: "list[Plan]", *, several: bool, weights: int) -> list[dict[str, Any]]:
    """A row for each plan, ranked unless the question differs."""
    from incrowd.privacy.plan.planner import ranked, row

    rows = [row(plan, weights=weights) for plan in plans]
    if several:  # more than rounds and cohorts differ
        named = zip(plans, rows, strict=True)
        return [{"clients": one.config.members, "budget_epsilon": one.budget.epsilon} | its for one, its in named]
    if len(rows) > 1:
        return [{"rank": rank} | one for rank, one in zip(ranked(plans), rows, strict=True)]
    return rows


@app.command()
def init(
    table: Annotated[Path, argument("TABLE", "A .csv, .csv.gz or .parquet file.")],
    out: Annotated[Path | None, option("A new file for the settings.", "FILE")] = None,
    client: Annotated[str | None, option("The column that says whose row it is.")] = None,
    label: Annotated[str | None, option("The column to learn.")] = None,
    as_json: Json = False,
) -> None:
    """Write settings for a table from its header alone; a ? marks the values that you state.

    Example: incrowd init visits.csv --client patient --label readmitted --out visits.toml
    """
    from incrowd.data.columns import read_header, relative, template

    if out is not None and out.exists():
        raise ConfigError(field="out", value=str(out), remedy="it is there already: name a new file")
    header = read_header(table)
    seen = relative(table, to=None if out is None else out.parent)
    text = template(table, header, client=client, label=label, seen=seen)
    if out is not None:
        _files.folder(out.parent)
        _files.write(out, text)
    facts = {
        "columns": list(header.columns),
        "delimiter": header.delimiter,
        "encoding": header.encoding,
        "out": None if out is None else str(out),
        "template": text,
    }
    said = (
        text.removesuffix("\n") if out is None else f"{out}: fill in what is marked with a ?, then: incrowd train {out}"
    )
    print_result(facts, as_json, said=said)


@privacy.command("ddml")
def ddml(
    k: Annotated[int, option("Instances in the pool.", None, "--k")],
    epsilon: Annotated[float, option("What one update may cost.")],
    updates_since: Annotated[int, option("Updates to the pool before the opportunist looks.")],
    delta: Annotated[float, option("The chance that the opportunist's bound fails.")] = 1e-8,
    gamma: Annotated[float, option("The learning rate, for the scale of the noise.")] = 0.001,
    clip: Annotated[float, option("The bound on the gradient, for the scale of the noise.")] = 1.0,
    weights: Annotated[int, option("Weights of the model: what a whole model costs.")] = 1,
    unit: Annotated[str, option("The unit of epsilon: feature, model, or l1 (the model, by an L1 clip).")] = "feature",
    as_json: Json = False,
) -> None:
    """Compute the promise of draw and discard against its three adversaries, for one update of one device.

    Example: incrowd privacy ddml --k 20 --epsilon 3.47 --updates-since 100000 --weights 387
    """
    from incrowd.drawdiscard.adversaries import Situation, adversaries

    _validate.count(k=k)
    _validate.positive(gamma=gamma, epsilon=epsilon)
    _validate.at_most(700.0, "what a computer can exponentiate", epsilon=epsilon)
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
