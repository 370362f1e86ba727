"""The server: it plans within a budget, and Flower's strategy takes its steps with the released mean."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from incrowd import Everyone, FixedClip, Ledger, Question
from incrowd.flower.strategy import private

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as many rounds as the plan has left, from the last weights kept; keep those of each round."""
    told = {name: str(value) for name, value in context.run_config.items()}
    number = {name: float(told[name]) for name in ("epsilon", "delta", "clip-norm", "learning-rate", "timeout")}
    plan = Question(
        clients=int(told["clients"]),
        rounds=int(told["rounds"]),
        epsilon=number["epsilon"],
        delta=number["delta"],
        sampling=Everyone,
        clip=FixedClip(clip_norm=number["clip-norm"]),
    ).answer()
    model = Path(told["model"])
    config = ConfigRecord({"epochs": int(told["epochs"]), "learning-rate": number["learning-rate"]})

    def keep(_: int, arrays: ArrayRecord) -> None:
        """Keep the weights of a round, which are public: a stopped run resumes from them."""
        part = model.with_suffix(".part.npz")
        np.savez(part, weights=arrays["weights"].numpy(), bias=arrays["bias"].numpy())
        part.replace(model)

    start = {"weights": np.zeros(int(told["features"]), np.float32), "bias": np.zeros((), np.float32)}
    if model.exists():
        with np.load(model) as kept:
            start = {name: kept[name] for name in start}
    arrays = ArrayRecord({name: Array(array) for name, array in start.items()})
    with Ledger.open(told["ledger"], budget=plan.budget, relation=plan.relation, data_identity=told["data"]) as ledger:
        strategy = private(FedAvg(min_available_nodes=plan.config.members), plan, ledger)
        strategy.start(grid, arrays, plan.rounds, number["timeout"], config, evaluate_fn=keep)
        model.with_suffix(".txt").write_text(strategy.statement().text())
