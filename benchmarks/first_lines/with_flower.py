"""The task with Flower 1.42 and its wrapper for central noise, which neither samples nor accounts nor remembers."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from first_lines.task import COHORT, OWNER, RATE, ROUNDS, X, Y, network

NOISE, CLIP_NORM = 1.0, 1.0  # to be found with somebody else's accountant
client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    mine = int(context.node_config["partition-id"]) == OWNER
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    its = TensorDataset(torch.from_numpy(X[mine]), torch.from_numpy(Y[mine]))
    for features, labels in DataLoader(its, batch_size=10, shuffle=True):
        optimizer.zero_grad()
        cross_entropy(model(features), labels).backward()
        optimizer.step()
    updated = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": int(mine.sum())})}
    return Message(content=RecordDict(updated), reply_to=message)


@server.main()
def serve(grid: Grid, _context: Context) -> None:
    """All rounds."""
    clients = len(set(OWNER.tolist()))
    strategy = FedAvg(fraction_train=COHORT / clients, fraction_evaluate=0.0)
    noisy = DifferentialPrivacyServerSideFixedClipping(strategy, NOISE, CLIP_NORM, COHORT)
    noisy.start(
        grid=grid, initial_arrays=ArrayRecord(network().state_dict()), train_config=ConfigRecord(), num_rounds=ROUNDS
    )


def main(_folder: str) -> None:
    """Simulate."""
    run_simulation(server_app=server, client_app=client, num_supernodes=len(set(OWNER.tolist())))
