"""A model scored on parties' own examples: an offer of one round, whose contributions are scores."""

import hashlib
from collections.abc import Collection
from dataclasses import replace

from numpy.typing import ArrayLike

from incrowd.errors import ConfigError, DataError
from incrowd.flower.history import AskedBefore
from incrowd.flower.invitation import question_key
from incrowd.flower.meeting import EnrolledLine, enrolments
from incrowd.flower.network import Deal, Network, Node, by_party
from incrowd.flower.offer import Offer
from incrowd.flower.offered import offer_of as offer_to_train
from incrowd.flower.rounds import Patience, ask
from incrowd.flower.serve import PartyServer
from incrowd.flower.wire import Place, read_refusal, unsealed
from incrowd.flower.work import RoundTask
from incrowd.privacy.plan.plan import Plan
from incrowd.runs.data_config import Parties
from incrowd.runs.evaluation import Evaluation, EvaluationConfig
from incrowd.runs.folder import Summary
from incrowd.runs.run import Run
from incrowd.runs.work import ClientWork

_LONGEST_REPLY = 2**15


def evaluate(
    run: Run, wanted: EvaluationConfig, network: Network, *, weights: ArrayLike | None = None, least: int = 1
) -> Summary:
    """Measure a finished run's model on the examples of the parties that trained it, over the network that did.

    The parties are offered the evaluation and charge it to their own ledgers, each once, as a round; the server charges
    its own. Those that refuse, or do not accept in time, are not asked, and count as one half.

    Guarantee: the figures are those of `Run.evaluate` where all examples are on one machine, to the last bit under the
    same seeds. Cut off and begun again in the same words, it is the same offer and the same question, for which parties
    pay nothing more, as long as the server had not charged it.

    Edge cases: as `Evaluation`; blocks of simulated clients, whose examples are on this machine, are a `ConfigError`;
    fewer parties than `least` that accept are a `DataError`, and nothing is asked or charged.
    """
    with Evaluation.begin(run.folder, run.work, wanted, weights=weights) as evaluation:
        offer = offer_of(evaluation, network.offer)
        asked = replace(network, offer=offer, history=AskedBefore(plan=offer.fingerprint))  # of one round: none before
        nodes = accepted(asked)
        if len(nodes) < least:
            raise DataError(
                f"{len(nodes)} of {len(asked.offer.parties)} parties have accepted the evaluation, and {least} are "
                "needed: see to them, or evaluate with fewer (--least); nothing was asked or charged"
            )
        return evaluation.release(replace(asked, deal=_among(nodes, asked.deal)).trainer(evaluation.weights))


def evaluate_served(server: PartyServer, run: Run, wanted: EvaluationConfig) -> Summary:
    """The same for a server's own run, over a SuperLink that is started for it.

    Edge cases: as `evaluate_over`.
    """
    _work(run)
    with server.link(_parties(run)) as link:
        return evaluate_over(server, link, run, wanted)


def evaluate_over(server: PartyServer, link: EnrolledLine, run: Run, wanted: EvaluationConfig) -> Summary:
    """The same for a server's own run, as soon as all its parties are connected, or at least `server.least` of them.

    Edge cases: not enough are there in time: `DataError`; data that are not with parties: `ConfigError`, for
    `Run.evaluate` is for them.
    """
    offer, there = offer_to_train(_work(run)), link.nodes
    least = server.least or len(offer.parties)
    _wait(link, server.patience, least=least)
    keys = {each.name: each.verifier() for each in enrolments(_parties(run))}
    nodes = {
        place: Node(id=there[name], party=name, key=keys[name])
        for place, name in enumerate(offer.parties)
        if name in there and name in keys and name in link.present()
    }
    network = Network(
        line=link, offer=offer, deal=by_party(nodes), key=question_key(server.keys), patience=server.patience
    )
    return evaluate(run, wanted, network, least=least)


def _wait(link: EnrolledLine, patience: Patience, *, least: int) -> None:
    """Wait until so many parties are there, or have had their time."""
    begin = patience.clock.now()
    while len(link.present()) < least and patience.clock.now() - begin < patience.timeout:
        patience.clock.wait(patience.poll)


def _parties(run: Run) -> Parties:
    if isinstance(run.config.data, Parties):
        return run.config.data
    remedy = "the data are here: leave the server's keys out, and it is measured here"
    raise ConfigError(field="data.name", value=run.config.data.name, remedy=remedy)


def _work(run: Run) -> ClientWork:
    _parties(run)
    if isinstance(run.work, ClientWork):
        return run.work
    remedy = "silos protect records: begin the run with privacy.report_std, and each reports on its own records"
    raise ConfigError(field="privacy.unit", value="record", remedy=remedy)


def _among(nodes: Collection[Node], deal: Deal) -> Deal:
    """A deal to some nodes alone."""
    return lambda clients: {node: its for node, its in deal(clients).items() if node in nodes}


def offer_of(evaluation: Evaluation, trained: Offer) -> Offer:
    """What the parties of an offer are offered: the same model and columns, to be scored.

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
    offer = replace(trained, plan=plan, size=scoring.size, settings=settings)
    RoundTask.stated(offer, 0, plan.config.clip)
    return offer


def accepted(network: Network) -> set[Node]:
    """Offer what a network asks for to all parties; those that accept in time."""
    offer = network.offer
    nodes = {node.id: node for node in network.deal(range(offer.plan.round(0).sampler.clients))}
    if any(node.block for node in nodes.values()):
        remedy = "their examples are on this machine: evaluate here (incrowd evaluate)"
        raise ConfigError(field="network", value="blocks of simulated clients", remedy=remedy)
    frame = offer.to_bytes(network.key)

    def read(number: int, answer: bytes) -> bool:
        node = nodes[number]
        if read_refusal(answer, question=frame, key=node.key) is not None:
            return False
        place, _, _ = unsealed(answer, kind="acceptance", key=node.key, most=0)
        if place != Place(plan=offer.fingerprint, round=0, party=node.party):
            raise DataError("an acceptance of another offer")
        return True

    found = ask(network.line, dict.fromkeys(nodes, frame), longest=_LONGEST_REPLY, read=read, patience=network.patience)
    return {nodes[number] for number, yes in found.items() if yes}
