"""The server: it plans within a budget, and Flower's strategy takes its steps with the released mean."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from incrowd import Everyone, FixedClip, Ledger, Question
from incrowd.flower import private

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as many rounds as the plan has left, and keep the weights of each."""
    told = {name: str(value) for name, value in context.run_config.items()}
    plan = Question(
        clients=int(told["clients"]),
        rounds=int(told["rounds"]),
        epsilon=float(told["epsilon"]),
        delta=float(told["delta"]),
        sampling=Everyone,
        clip=FixedClip(clip_norm=float(told["clip-norm"])),
    ).answer()
    model = Path(told["model"])
    config = ConfigRecord({"epochs": int(told["epochs"]), "learning-rate": float(told["learning-rate"])})
    with Ledger.open(told["ledger"], budget=plan.budget, relation=plan.relation, data_identity=told["data"]) as ledger:
        strategy = private(FedAvg(min_available_nodes=plan.config.members), plan, ledger)
        strategy.start(
            grid,
            first(model, features=int(told["features"])),
            num_rounds=plan.rounds,
            timeout=float(told["timeout"]),
            train_config=config,
            evaluate_fn=lambda _, arrays: keep(model, arrays),
        )
        model.with_suffix(".txt").write_text(strategy.statement().text())


def first(model: Path, *, features: int) -> ArrayRecord:
    """The last weights kept; zeros before."""
    arrays = {"weights": np.zeros(features, np.float32), "bias": np.zeros((), np.float32)}
    if model.exists():
        with np.load(model) as kept:
            arrays = {name: kept[name] for name in arrays}
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def keep(model: Path, arrays: ArrayRecord) -> None:
    """Keep the weights of a round, which are public: a stopped run resumes from them."""
    part = model.with_suffix(".part.npz")
    np.savez(part, weights=arrays["weights"].numpy(), bias=arrays["bias"].numpy())
    part.replace(model)
