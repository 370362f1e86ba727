"""Whole contributions: a device, a server, and what breaks between them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard import Device, Drawn, Outcome, Policy, Reason, Server
from incrowd.errors import ConfigError, SpecificationRefused
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from tests.drawdiscard import mail

BUDGET = Budget(epsilon=10.0, delta=1e-6)
POLICY = Policy(epsilon=2.0, daily_epsilon=4.0, budget=BUDGET)


def test_a_contribution_goes_all_the_way(tmp_path: Path) -> None:
    server = Server(mail.asked(), turned_away=1e-6)
    with Device(mail.mails(), ledger=tmp_path / "ledger.db", policy=mail.LOOSE) as own:
        outcomes = [own.contribute(server) for _ in range(3)]
        assert mail.charges(own.ledger) == 3
        assert own.spent_today() == pytest.approx(6.0)
    assert server.accepted == sum(outcome.accepted for outcome in outcomes) > 0
    assert {path.name for path in tmp_path.iterdir()} == {"ledger.db", "ledger.db.witness", "ledger.db.lock"}


def test_examples_in_memory_need_a_named_ledger() -> None:
    with pytest.raises(ConfigError, match="name a file for the ledger"):
        Device(mail.mails())


class Unsteady:
    """A server whose line breaks before or after the answer has arrived."""

    def __init__(self, server: Server, *, arrives: bool) -> None:
        self.server = server
        self.arrives = arrives
        self.draws = 0

    def specification_json(self) -> str:
        return self.server.specification_json()

    def draw(self) -> Drawn:
        self.draws += 1
        return self.server.draw()

    def offer(self, update: Any, ticket: bytes) -> Outcome:
        if self.arrives:
            self.server.offer(update, ticket)
        raise ConnectionError("the line broke")


@pytest.mark.parametrize(("arrives", "reason"), [(False, Reason.ACCEPTED), (True, Reason.REPEATED)])
def test_a_broken_line_costs_nothing_twice(tmp_path: Path, arrives: bool, reason: Reason) -> None:
    server = Server(mail.asked(), turned_away=1e-6)
    line = Unsteady(server, arrives=arrives)
    with Device(mail.mails(), ledger=tmp_path / "ledger.db", policy=mail.LOOSE) as own:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                own.contribute(line)
    with Device(mail.mails(), ledger=tmp_path / "ledger.db", policy=mail.LOOSE) as again:
        assert again.contribute(server).reason is reason
        assert (mail.charges(again.ledger), server.accepted, line.draws) == (1, 1, 1)
        assert again.contribute(server).reason is Reason.ACCEPTED
        assert (mail.charges(again.ledger), server.accepted) == (2, 2)


def test_an_answer_that_waits_is_no_answer_to_another_specification(tmp_path: Path) -> None:
    with Device(mail.mails(), ledger=tmp_path / "ledger.db", policy=mail.LOOSE) as own:
        with pytest.raises(ConnectionError):
            own.contribute(Unsteady(Server(mail.asked(), turned_away=1e-6), arrives=False))
        other = Server(mail.asked(name="other"), turned_away=1e-6)
        assert own.contribute(other).reason is Reason.ACCEPTED
        assert mail.charges(own.ledger) == 2
        assert mail.waiting(tmp_path) == 1, "and waits on"


class Fussy(Unsteady):
    """A server that has a word of its own for the first offers, and notes what was drawn and offered."""

    def __init__(self, server: Server, *words: Reason) -> None:
        super().__init__(server, arrives=False)
        self.words = list(words)
        self.drawn: list[Drawn] = []
        self.offered: list[tuple[bytes, bytes]] = []

    def draw(self) -> Drawn:
        self.drawn.append(super().draw())
        return self.drawn[-1]

    def offer(self, update: Any, ticket: bytes) -> Outcome:
        self.offered.append((update.tobytes(), ticket))
        return Outcome(self.words.pop(0)) if self.words else self.server.offer(update, ticket)


def test_what_comes_too_late_goes_out_on_a_newer_instance_with_the_same_noise(tmp_path: Path) -> None:
    """Nothing more is spent, and nothing more is told: what differs between the answers is what the server drew."""
    server = Server(mail.asked(), turned_away=1e-6)
    fussy = Fussy(server, Reason.LATE, Reason.FORGED)
    with Device(mail.mails(), ledger=tmp_path / "ledger.db", policy=mail.LOOSE) as own:
        assert own.contribute(fussy).reason is Reason.ACCEPTED
        assert (mail.charges(own.ledger), server.accepted, fussy.draws) == (1, 1, 3)
        assert mail.waiting(tmp_path) == 0
    steps = [
        np.frombuffer(update, "<f4").astype(np.float64) - drawn.weights
        for (update, _), drawn in zip(fussy.offered, fussy.drawn, strict=True)
    ]
    assert [ticket for _, ticket in fussy.offered] == [drawn.ticket for drawn in fussy.drawn]
    assert np.abs(steps[0]).max() > 1e-3
    for step in steps[1:]:
        np.testing.assert_allclose(step, steps[0], atol=1e-6)


def test_a_lost_reply_brings_the_same_bytes_again(tmp_path: Path) -> None:
    server = Server(mail.asked(), turned_away=1e-6)

    class Deaf(Fussy):
        def offer(self, update: Any, ticket: bytes) -> Outcome:
            super().offer(update, ticket)
            raise ConnectionError("the line broke")

    deaf, healthy = Deaf(server), Fussy(server)
    with Device(mail.mails(), ledger=tmp_path / "ledger.db", policy=mail.LOOSE) as own, pytest.raises(ConnectionError):
        own.contribute(deaf)
    with Device(mail.mails(), ledger=tmp_path / "ledger.db", policy=mail.LOOSE) as again:
        assert again.contribute(healthy).reason is Reason.REPEATED
    assert (deaf.offered, healthy.drawn) == (healthy.offered, [])
    assert server.accepted == 1


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"fingerprint": "0" * 64}, "another specification than it states"),
        *(({"gamma": gamma}, "that is no size") for gamma in (0.0, -0.05, float("nan"), float("inf"))),
        *(({"ticket": ticket}, "ticket") for ticket in (b"x" * 1025, "text")),
    ],
)
def test_a_draw_that_is_none_is_refused_before_anything_is_spent(tmp_path: Path, lie: dict[str, Any], why: str) -> None:
    class Liar(Unsteady):
        def draw(self) -> Drawn:
            return self.server.draw()._replace(**lie)

    with Device(mail.mails(), ledger=tmp_path / "ledger.db") as own:
        with pytest.raises(SpecificationRefused, match=why):
            own.contribute(Liar(Server(mail.asked(), turned_away=1e-6), arrives=True))
        assert mail.charges(own.ledger) == 0


def test_the_step_size_of_the_draw_counts_and_the_release_does_not_depend_on_it() -> None:
    """Ten times the step size: the same whole numbers, ten times as far."""
    steps = []
    for gamma in (0.01, 0.1):
        ledger = Ledger.in_memory(budget=mail.LOOSE.budget, relation=Relation.REPLACE_ONE)
        all_examples = mail.asked(examples=100).to_json()
        own = Device(mail.mails(), ledger=ledger, policy=mail.LOOSE, randomness=SeededRandomness(seed=1))
        steps.append(own.answer(all_examples, np.zeros(4), gamma).astype(np.float64))
    np.testing.assert_allclose(steps[1], 10 * steps[0], rtol=1e-6)


def test_the_owner_is_told_what_does_not_fit() -> None:
    ledger = Ledger.in_memory(budget=BUDGET, relation=Relation.REPLACE_ONE)
    found = [
        {"opened": "yes", "sender": "friend", "words": 3},
        {"opened": 1, "sender": "Friend", "words": "12"},
        {"opened": 2, "sender": None, "words": 501},
        {"opened": 0, "sender": 7, "words": 3.5},
    ]
    fit = Device(found, ledger=ledger, policy=POLICY).check(mail.asked())
    assert (fit.examples, fit.usable) == (4, 3)
    assert fit.problems == (
        "opened: 1 of 4 is no number (such as 'yes')",
        "opened: 1 of 4 lies beyond 0 to 1 (such as 2)",
        "sender: 2 of 4 is none of the levels (such as 'Friend')",
        "sender: 1 of 4 is missing",
        "words: 1 of 4 is no number (such as '12')",
        "words: 1 of 4 lies beyond 0 to 500 (such as 501)",
        "words: 1 of 4 is no whole number (such as 3.5)",
    )
    assert str(fit).startswith("3 of 4 examples can be learnt from\n- opened: 1 of 4 is no number")
    assert ledger.charges() == (0, 0)


def test_the_owner_is_told_of_noise_alone_and_of_what_is_refused() -> None:
    ledger = Ledger.in_memory(budget=BUDGET, relation=Relation.REPLACE_ONE)
    own = Device([{"opened": "yes"}], ledger=ledger, policy=POLICY)
    refused, *_, alone = own.check(mail.asked()).problems
    assert refused == "refused: the field sender is not one that this device lets models use"
    assert "noise alone" in alone
    dear = Device(mail.mails(), ledger=ledger, policy=POLICY).check(mail.asked(epsilon=2.5))
    assert dear.problems == ("refused: a contribution would cost epsilon = 2.5 per model; this device allows 2",)


def test_the_statement_of_a_device_is_its_ledger_s(tmp_path: Path) -> None:
    with Device(mail.mails(), ledger=tmp_path / "ledger.db", policy=mail.LOOSE) as own:
        for _ in range(2):
            own.contribute(Server(mail.asked(), turned_away=1e-6))
        stated = own.statement()
    assert stated.epsilon == pytest.approx(4.0)
    assert (stated.unit, stated.relation, stated.caveats) == ("device", Relation.REPLACE_ONE, ())
    assert "which of two values one device had" in " ".join(stated.text().split())
    per_feature = replace(mail.LOOSE, unit="feature")
    with Device(mail.mails(), ledger=tmp_path / "other.db", policy=per_feature) as own:
        assert any("each released number on its own" in caveat for caveat in own.statement().caveats)


def test_without_a_word_a_device_allows_one_contribution_a_day_and_ten_in_all() -> None:
    policy = Policy()
    assert (policy.epsilon, policy.daily_epsilon, policy.budget.epsilon) == (2.0, 2.0, 20.0)
