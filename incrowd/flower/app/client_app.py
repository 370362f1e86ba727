"""The client: it trains on its own examples, and sends its weights back. Put your own training here."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """A few steps of logistic regression from the server's weights."""
    arrays, config = message.content.array_records["arrays"], message.content.config_records["config"]
    weights, bias = arrays["weights"].numpy(), arrays["bias"].numpy()
    rows, labels = examples(context, features=len(weights))
    for _ in range(int(str(config["epochs"]))):
        error = 1 / (1 + np.exp(-(rows @ weights + bias))) - labels
        weights = weights - float(str(config["learning-rate"])) * rows.T @ error / len(labels)
        bias = bias - float(str(config["learning-rate"])) * error.mean()
    trained = {"weights": Array(weights.astype(np.float32)), "bias": Array(np.asarray(bias, np.float32))}
    # The server ignores numbers of examples and losses: they would reveal data for nothing.
    return Message(RecordDict({"arrays": ArrayRecord(trained)}), reply_to=message)


def examples(context: Context, *, features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Synthetic examples of one client: read your own, from the path in `--node-config`."""
    client = 1 + int(str(context.node_config.get("partition-id", 0)))
    rows = np.sin(client * np.arange(100.0 * features)).reshape(100, features)
    return rows, (rows.sum(axis=1) > 0).astype(np.float64)
