"""Whole contributions: a device, a server, and what breaks between them."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from incrowd.drawdiscard import Device, Drawn, Fit, Outcome, Policy, Reason, Server
from incrowd.errors import BudgetExceeded, ConfigError, SpecificationRefused
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


def test_a_file_has_its_ledger_beside_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "phone.db")) as app, app:
        app.execute("CREATE TABLE mails (opened, sender, words)")
        app.executemany("INSERT INTO mails VALUES (?, ?, ?)", [tuple(row.values()) for row in mail.mails()])
    with Device(tmp_path / "phone.db", table="mails") as own:
        assert own.check(mail.asked()) == Fit(20, 20, ())
        own.contribute(Server(mail.asked(), turned_away=1e-6))
        with pytest.raises(BudgetExceeded, match="daily limit is 2"):
            own.contribute(Server(mail.asked(), turned_away=1e-6))
    assert mail.charges(tmp_path / "phone.db.ledger") == 1


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

    def offer(self, update: Any, fingerprint: str) -> Outcome:
        if self.arrives:
            self.server.offer(update, fingerprint)
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


def test_an_instance_of_another_specification_is_refused(tmp_path: Path) -> None:
    class Liar(Unsteady):
        def draw(self) -> Drawn:
            return Drawn(self.server.draw().weights, "0" * 64)

    with Device(mail.mails(), ledger=tmp_path / "ledger.db") as own:
        with pytest.raises(SpecificationRefused, match="another specification than it states"):
            own.contribute(Liar(Server(mail.asked(), turned_away=1e-6), arrives=True))
        assert mail.charges(own.ledger) == 0


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
