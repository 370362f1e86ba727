"""A model scored on parties' own examples: an offer of one round, whose contributions are scores."""

import hashlib
from collections.abc import Collection
from dataclasses import replace

from incrowd.errors import ConfigError, DataError
from incrowd.parties.asking import Patience, ask
from incrowd.parties.contribution import RoundTask
from incrowd.parties.frames import AskedBefore, read_acceptance
from incrowd.parties.keys import question_key
from incrowd.parties.network import Deal, Network, Node, by_party
from incrowd.parties.offer import Offer
from incrowd.parties.offer import offer_of as offer_to_train
from incrowd.parties.server import LONGEST_REPLY, PartyServer, PartyTransport, enrolments
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.data_config import Parties
from incrowd.runs.evaluation import Evaluation, EvaluationConfig
from incrowd.runs.folder import Summary
from incrowd.runs.run import Run
from incrowd.runs.work import ClientWork


def evaluate(run: Run, wanted: EvaluationConfig, network: Network, *, least: int = 1) -> Summary:
    """Measure a finished run's model on the examples of the parties that trained it, over the same network.

    Each party charges the evaluation to its own ledger as one round, the server to its own. A party that refuses, or
    does not accept in time, counts as one half.

    Guarantee: with all examples on one machine, `Run.evaluate` gives the same figures, to the last bit under the same
    seeds. An interrupted evaluation goes on with the same offer; parties pay once until the server has charged it.

    Edge cases: as `Evaluation`; simulated blocks, whose examples are on this machine, are a `ConfigError`; if fewer
    parties than `least` accept, it is a `DataError`, and the server asks and charges nothing.
    """
    with Evaluation.begin(run.folder, run.work, wanted) as evaluation:
        offer = offer_of(evaluation, network.offer)
        asked = replace(network, offer=offer, history=AskedBefore(plan=offer.fingerprint))  # of one round: none before
        nodes = accepted(asked)
        if len(nodes) < least:
            raise DataError(
                f"{len(nodes)} of {len(asked.offer.parties)} parties have accepted the evaluation, and {least} are "
                "needed: see to them, or evaluate with fewer (--least); nothing was asked or charged"
            )
        return evaluation.release(replace(asked, deal=_among(nodes, asked.deal)).trainer(evaluation.weights))


def evaluate_over(server: PartyServer, link: PartyTransport, run: Run, wanted: EvaluationConfig) -> Summary:
    """The same for a server's own run, when all its parties are connected, or at least `server.least` of them.

    Edge cases: too few parties in time are a `DataError`; data on this machine are a `ConfigError`: see `Run.evaluate`.
    """
    offer, there = offer_to_train(check_trained(run)), link.nodes
    least = server.least or len(offer.parties)
    _wait(link, server.patience, least=least)
    keys = {each.name: each.verifier() for each in enrolments(_parties(run))}
    nodes = {
        place: Node(id=there[name], party=name, key=keys[name])
        for place, name in enumerate(offer.parties)
        if name in there and name in keys and name in link.present()
    }
    network = Network(
        transport=link, offer=offer, deal=by_party(nodes), key=question_key(server.keys), patience=server.patience
    )
    return evaluate(run, wanted, network, least=least)


def _wait(link: PartyTransport, patience: Patience, *, least: int) -> None:
    """Wait until so many parties are there, or have had their time."""
    begin = patience.clock.now()
    while len(link.present()) < least and patience.clock.now() - begin < patience.timeout:
        patience.clock.wait(patience.poll)


def _parties(run: Run) -> Parties:
    if isinstance(run.config.data, Parties):
        return run.config.data
    remedy = "the data are here: leave the server's keys out, and it is measured here"
    raise ConfigError(field="data.name", value=run.config.data.name, remedy=remedy)


def check_trained(run: Run) -> ClientWork:
    """The work of a run whose parties can be asked to score its model."""
    _parties(run)
    if isinstance(run.work, ClientWork):
        return run.work
    remedy = (
        "silos protect records, and have no evaluation: measure on a public test set, or let each silo score "
        "the released model on its own records, for itself"
    )
    raise ConfigError(field="privacy.unit", value="record", remedy=remedy)


def _among(nodes: Collection[Node], deal: Deal) -> Deal:
    """A deal to some nodes alone."""
    return lambda clients: {node: its for node, its in deal(clients).items() if node in nodes}


def offer_of(evaluation: Evaluation, trained: Offer) -> Offer:
    """The offer to score a trained model on the same columns.

    Two evaluations of a run are two offers, which parties charge one by one.
    """
    plan, scoring = evaluation.private.plan, evaluation.scoring
    assert isinstance(plan, Plan)  # noqa: S101 - an evaluation plans nothing else
    measured = {
        **scoring.to_json(),
        "weights": evaluation.weights.size,
        "of": hashlib.sha256(evaluation.weights.astype("<f4").tobytes()).hexdigest(),
        "name": evaluation.label,
    }
    # A published model has no class shares after its weights.
    settings = {**trained.settings, "evaluate": measured}
    offer = Offer.of_plan(plan, size=scoring.size, columns=trained.columns, settings=settings, parties=trained.parties)
    RoundTask.stated(offer, 0, plan.config.clip)
    return offer


def accepted(network: Network) -> set[Node]:
    """Offer an evaluation to all parties; return the nodes that accept in time."""
    offer = network.offer
    nodes = {node.id: node for node in network.deal(range(offer.plan.round(0).sampler.clients))}
    if any(node.block for node in nodes.values()):
        remedy = "their examples are on this machine: evaluate here (incrowd evaluate)"
        raise ConfigError(field="network", value="blocks of simulated clients", remedy=remedy)
    frame = offer.to_bytes(network.key)

    def read(number: int, answer: bytes) -> str:
        party, key = nodes[number].party, nodes[number].key
        return read_acceptance(answer, question=frame, plan=offer.fingerprint, party=party, key=key)

    frames = dict.fromkeys(nodes, frame)
    found = ask(network.transport, frames, longest=LONGEST_REPLY, read=read, patience=network.patience)
    return {nodes[number] for number, why in found.items() if not why}
