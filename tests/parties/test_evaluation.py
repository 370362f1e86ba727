"""Parties score a released model on their own examples: the figures of one machine, paid for at each of them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from incrowd._random import Randomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError, SpecificationRefused
from incrowd.federation import Federation
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.learning.scoring import Scoring
from incrowd.parties.asking import Patience
from incrowd.parties.contribution import alone
from incrowd.parties.frames import Place, Request, sealed
from incrowd.parties.guard import LEDGER, given
from incrowd.parties.network import Network, Node
from incrowd.parties.network import offer_of as offered
from incrowd.parties.offer import Offer
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PartyPolicy
from incrowd.parties.server import evaluate, evaluate_over
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan import forms
from incrowd.runs.evaluation import Evaluation, EvaluationConfig
from incrowd.runs.run import Run
from incrowd.runs.work import ClientWork
from tests.parties.members import NAMES as MEMBERS
from tests.parties.members import Hospitals, MemberLine, settings_text
from tests.parties.nodes import Answers, PlainLine, VirtualClock
from tests.parties.parties import KEYS, MODEL, NAMES, SERVER, Made, plan_of
from tests.parties.test_participant import charged
from tests.runs.small import clients_of, seeded

pytestmark = pytest.mark.usefixtures("one_thread")

WANTED = EvaluationConfig(epsilon=20.0, loss_bound=4.0, by_class=True)
KINDS = {
    "central": (),
    "poisson": ("privacy.sampling=poisson", "privacy.cohort=2", "privacy.epsilon=50"),
    "quantile": ("privacy.clip={kind='quantile',clip_norm=0.1,bit_noise=4}", "privacy.epsilon=50"),
    "local": ("privacy.noise_by=party", "privacy.sampling=everyone"),
    "correlated": ("privacy.noise=correlated", "privacy.groups=3"),
    "label distribution": ("local.label_shares=0.1", "local.label_distribution=0.2", "privacy.epsilon=50"),
}


@dataclass
class Own(Made):
    """A party with one client's examples of a run, and nobody else's."""

    work: ClientWork = field(kw_only=True)

    def engine(self, offer: Offer) -> CohortEngine:
        """See `Made.engine`."""
        number, tensors = NAMES.index(self.name), ClientTensors.of(self.work.data)
        rows = torch.from_numpy(np.asarray(tensors.examples(number)).astype(np.int64))
        assert isinstance(tensors.features, torch.Tensor)
        own = ClientTensors(
            features=tensors.features[rows],
            labels=tensors.labels[rows],
            offsets=np.array([0, len(rows)]),
            indices=np.arange(len(rows)),
            scale=tensors.scale,
            offset=tensors.offset,
        )
        its = alone(own, number=number, clients=3)
        return CohortEngine(self.work.model, its, self.work.engine.local, loss=self.work.loss)


def finished(folder: Path, *settings: str) -> Run:
    """A run over three clients, whose ledger has room."""
    run = Run.create(seeded("data.clients=3", *settings, "privacy.room=1e6"), folder)
    run.train()
    return run


def deployed(
    run: Run, folder: Path, *, third: dict[str, Any] | None = None, **rest: Any
) -> tuple[Network, list[Participant]]:
    """Three parties that a finished run knows, with room for what they are asked, and the way to them; what the owner
    of the `third` allows may be something else.
    """
    work = replace(clients_of(run), **rest)
    roomy = {"budget": Budget(epsilon=1e6, delta=work.plan.budget.delta)}
    policies = [PartyPolicy(**allowed) for allowed in (roomy, roomy, roomy | (third or {}))]
    drawn = {"randomness": work.randomness}
    made = [Own(folder / name, name, policy, drawn, work=work) for name, policy in zip(NAMES, policies, strict=True)]
    parties = [each.start() for each in made]
    offer = offered(work).replaced(parties=NAMES)
    nodes = [Node(id=number, party=name, key=KEYS[name].public_key()) for number, name in enumerate(NAMES)]
    return Network(
        transport=PlainLine({number: polite(each.answer) for number, each in enumerate(parties)}),
        offer=offer,
        nodes=lambda: nodes,
        key=SERVER,
        patience=Patience(timeout=5, clock=VirtualClock()),
    ), parties


def polite(reply: Callable[[bytes], bytes]) -> Answers:
    """What a party that refuses says to a server: nothing that it could read."""

    def answer(frame: bytes) -> bytes:
        try:
            return reply(frame)
        except (SpecificationRefused, BudgetExceeded):
            return b""

    return answer


def noise_of(run: Run) -> Randomness:
    """What an evaluation draws from under a seed: parties that noise for themselves are given the same."""
    with Evaluation.begin(run.folder, run.work, WANTED) as evaluation:
        return evaluation.private.randomness


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_parties_give_the_figures_of_one_machine(kind: str, tmp_path: Path) -> None:
    here, there = (finished(tmp_path / name, *KINDS[kind], "privacy.epsilon=8") for name in ("here", "there"))
    network, parties = deployed(there, tmp_path, randomness=noise_of(there))
    found = evaluate(there, WANTED, network)
    assert found == here.evaluate(WANTED)
    assert found["by_class"]
    for each in parties:
        assert charged(each.folder) == [0]


def test_asked_twice_each_party_pays_twice(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    network, parties = deployed(run, tmp_path)
    figures = [evaluate(run, EvaluationConfig(epsilon=5.0), network)["accuracy"] for _ in range(2)]
    assert figures[0] != figures[1]
    for each in parties:
        assert charged(each.folder) == [0, 0]
        with Ledger.read(each.folder / "ledger.sqlite") as ledger:
            assert ledger.spent().epsilon > 5.0


def test_cut_off_it_goes_on_and_parties_pay_once(tmp_path: Path) -> None:
    """The server's process ends between the parties' answers and its own charge."""
    run = finished(tmp_path / "run")
    network, parties = deployed(run, tmp_path)
    assert isinstance(network.transport, PlainLine)
    cut = replace(network, transport=CutLine(network.transport.nodes))
    wanted = EvaluationConfig(epsilon=5.0)
    with pytest.raises(KeyboardInterrupt):
        evaluate(run, wanted, cut)
    assert [charged(each.folder) for each in parties] == [[0], [0], [0]]
    found = evaluate(run, wanted, network)
    assert [charged(each.folder) for each in parties] == [[0], [0], [0]]
    assert found == finished(tmp_path / "other").evaluate(wanted)


class CutLine(PlainLine):
    """Its user is stopped when the answers to the second question have come."""

    def pull(self, asked: list[str], longest: int) -> Any:
        """See `Line.pull`."""
        if len(self.asked) > 3:
            raise KeyboardInterrupt
        return super().pull(asked, longest)


REFUSING: dict[str, dict[str, Any]] = {
    "policy": {"evaluations": False},
    "budget": {"budget": Budget(epsilon=0.1, delta=1e-3)},
}


@pytest.mark.slow
@pytest.mark.parametrize("why", REFUSING)
def test_a_party_that_allows_none_is_not_asked_and_counts_as_one_half(why: str, tmp_path: Path) -> None:
    run, wanted = finished(tmp_path / "run"), EvaluationConfig(epsilon=1e4)
    network, parties = deployed(run, tmp_path, third=REFUSING[why])
    with Evaluation.begin(run.folder, run.work, wanted) as evaluation:
        rows = evaluation.here.rows(range(2))
    found = evaluate(run, wanted, network)
    assert found["accuracy"] == pytest.approx(rows.sum() / 3 + 0.5, abs=7 * found["accuracy_std"])
    assert found["accuracy_std"] < 0.003
    assert [charged(each.folder) for each in parties[:2]] == [[0], [0]]
    assert not (parties[2].folder / LEDGER).exists() or charged(parties[2].folder) == []
    for each in parties[:2]:
        each.policy = each.policy.replaced(evaluations=False)
    before = (run.folder / "evaluation.json").read_text()
    with pytest.raises(DataError, match="0 of 3 parties have accepted the evaluation, and 1 are needed"):
        evaluate(run, EvaluationConfig(epsilon=1.0), replace(network, patience=Patience(clock=VirtualClock())))
    assert (run.folder / "evaluation.json").read_text() == before or why == "budget"


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    """Three parties with tables of their own, and the settings of the same on one machine."""
    made = Hospitals(tmp_path)
    for name, here in (("here", True), ("there", False)):
        text = settings_text(here=here, privacy="epsilon = 20.0\ndelta = 1e-5\nrounds = 2\nroom = 1e3\n")
        (tmp_path / f"{name}.toml").write_text(text)
    return made


@pytest.mark.slow
def test_a_server_that_holds_no_data_evaluates_with_the_parties_that_are_there(hospitals: Hospitals) -> None:
    here, there = (
        Federation.from_settings(hospitals.folder / f"{name}.toml").run_in(hospitals.folder / name)
        for name in ("here", "there")
    )
    here.train()
    server, line, wanted = hospitals.server(say=lambda _: None), MemberLine(hospitals), EvaluationConfig(epsilon=10.0)
    server.train_over(line, there)
    found = evaluate_over(server, line, there, wanted)
    expected = here.evaluate(wanted)
    mine, theirs = found.pop("statement"), expected.pop("statement")  # which name the parties, and a table's hospitals
    assert (found, mine["epsilon"]) == (expected, theirs["epsilon"])
    assert len(mine["assumed"]) == len(set(mine["assumed"]))
    with pytest.raises(ConfigError, match=r"data\.name = 'parties': the examples are with the parties"):
        there.evaluate(wanted)
    with pytest.raises(ConfigError, match="the data are here"):
        evaluate_over(server, line, here, wanted)
    line.gone.add("cedar")
    hospitals.state("birch", allow="epsilon = 100.0\ndelta = 1e-5\nevaluations = false\n")
    line.close()
    with pytest.raises(DataError, match="1 of 3 parties have accepted the evaluation, and 3 are needed"):
        evaluate_over(server, line, there, wanted)
    less = evaluate_over(replace(server, least=1), line, there, wanted)
    assert less["accuracy"] != found["accuracy"]
    line.close()
    rows = {name: given(hospitals.folder / name)["events"] for name in MEMBERS}
    assert [row["what"] for row in rows["amber"]] == ["training", "training", "evaluation", "evaluation"]
    rounds = {name: [row["round"] for row in its] for name, its in rows.items()}
    assert rounds == {"amber": [0, 1, 0, 0], "birch": [0, 1, 0], "cedar": [0, 1, 0]}
    assert not line.failed


# One party, and a server that asks what it likes.

SCORING = Scoring(loss_bound=3.0)
MEASURED = {**SCORING.to_json(), "weights": MODEL.size}


def scored(**measured: Any) -> Offer:
    clip = FixedClip(clip_norm=SCORING.bound)
    settings = {"model": {"kind": "linear"}, "evaluate": MEASURED | measured}
    return Offer.of_plan(plan_of(1, clip=clip), size=SCORING.size, settings=settings, parties=NAMES)


def signed(**measured: Any) -> bytes:
    """An offer as a server may send it that is not ours."""
    form = scored().to_json()
    form["settings"]["evaluate"] |= measured
    place = Place(plan=forms.fingerprint(form), round=0, party="")
    return sealed("offer", place, {"offer": form}, b"", key=SERVER)


def question(offer: Offer, *, size: int = MODEL.size, weight: float = 0.0) -> bytes:
    form = forms.to_json(forms.RoundForm(plan=offer.fingerprint, round=0, clip=FixedClip(clip_norm=SCORING.bound)))
    place = Place(plan=offer.fingerprint, round=0, party="")
    return Request(place=place, weights=np.full(size, weight, np.float32), clip=form["clip"]).to_bytes(SERVER)


def test_one_answer_to_one_question(made: Made) -> None:
    made.rest = {"randomness": SystemRandomness()}
    offer, party_ = scored(), made.start()
    party_.answer(offer.to_bytes(SERVER))
    answer = party_.answer(question(offer))
    assert party_.answer(question(offer)) == answer
    with pytest.raises(SpecificationRefused, match="another question was asked in round 0"):
        party_.answer(question(offer, weight=1.0))
    assert charged(made.folder) == [0]
    party_.answer(scored(name="another").to_bytes(SERVER))  # another evaluation, and paid for
    party_.answer(question(scored(name="another"), weight=1.0))
    assert charged(made.folder) == [0, 0]


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"weights": MODEL.size + 1}, "the model that it describes"),
        ({"loss_bound": None, "classes": None}, "what is measured has 1 numbers"),
        ({"accuracy": "much"}, "accuracy"),
        ({"weights": None}, "weights"),
        ({"weights": 10**9}, "weights are more than this party allows"),
    ],
    ids=["other weights", "other size", "no scoring", "no weights", "too many"],
)
def test_an_offer_that_cannot_be_done_costs_nothing(measured: dict[str, Any], words: str, made: Made) -> None:
    party_ = made.start()
    with pytest.raises((SpecificationRefused, ConfigError), match=words):
        party_.answer(signed(**measured))
    assert not (made.folder / LEDGER).exists() or charged(made.folder) == []
