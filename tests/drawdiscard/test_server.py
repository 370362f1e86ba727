import threading
from pathlib import Path

import numpy as np
import pytest

from incrowd import SeededRandomness, Server
from incrowd.drawdiscard import Reason, kept_pool
from incrowd.drawdiscard.kept_pool import FILE, LOCK, SPECIFICATION, known_again
from incrowd.errors import ConfigError
from tests.drawdiscard.mail import asked, held, honest, on_disk, phone

SEEDED = SeededRandomness(seed=3)


def test_devices_learn_a_model_that_predicts() -> None:
    """The responses are all no for friends and all yes for shops; a large epsilon, so that a few devices are enough."""
    with Server(asked(epsilon=1e3, gamma=1.0, instances=2)) as own:
        outcomes = [phone(first=number).contribute(own) for number in range(60)]
        assert sum(outcome.accepted for outcome in outcomes) > 50
        friend, shop = own.model().predict([{"sender": "friend", "words": 250}, {"sender": "shop", "words": 250}])
    assert friend < 0.4
    assert shop > 0.6


def test_an_outcome_says_whether_and_why_not() -> None:
    own = Server(asked(), turned_away=1e-6)
    update, ticket = honest(own)
    assert str(own.offer(update, ticket)) == "accepted: it is in the pool"
    assert str(own.offer(update + 1e3, ticket)).startswith("turned away: hardly an honest device")
    assert own.offer(update[:2], ticket).reason is Reason.NOT_WEIGHTS
    assert own.offer(update, b"").reason is Reason.FORGED
    assert own.offer(update, ticket[:-1] + bytes([ticket[-1] ^ 1])).reason is Reason.FORGED
    assert own.offer(update, honest(Server(asked(name="other")))[1]).reason is Reason.OTHER_SPECIFICATION
    assert own.accepted == 1


def test_an_answer_to_a_version_that_is_no_longer_known_is_late() -> None:
    own = Server(asked(instances=2), turned_away=1e-6, history=1)
    late = honest(own, seed=99)
    for number in range(30):
        assert own.offer(*honest(own, seed=number)).accepted
    assert own.offer(*late).reason is Reason.LATE
    with_history = Server(asked(instances=2), turned_away=1e-6, history=30)
    waited = honest(with_history, seed=99)
    for number in range(30):
        with_history.offer(*honest(with_history, seed=number))
    assert with_history.offer(*waited).reason is Reason.ACCEPTED, "the control"


def test_opened_again_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = Server(asked(), turned_away=1e-6, randomness=SEEDED)
    own = Server(asked(), turned_away=1e-6, folder=tmp_path, randomness=SEEDED)
    for number in range(40):
        if number % 7 == 3:
            own.close()
            own = Server(asked(), turned_away=1e-6, folder=tmp_path, randomness=SEEDED)
        answers = [honest(one, seed=number) for one in (whole, own)]
        assert np.array_equal(answers[0][0], answers[1][0])
        assert answers[0][1] == answers[1][1]
        assert whole.offer(*answers[0]) == own.offer(*answers[1])
    assert held(own) == held(whole)
    own.close()


def test_a_folder_knows_its_specification(tmp_path: Path) -> None:
    with Server(asked(), turned_away=1e-6, folder=tmp_path) as own:
        before = held(own)
    with Server.open(tmp_path) as again:
        assert again.specification == asked()
        assert held(again) == before
    with pytest.raises(ConfigError, match="no server was begun"):
        Server.open(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_what_was_accepted_is_on_disk(tmp_path: Path) -> None:
    own = Server(asked(), turned_away=1e-6, folder=tmp_path)
    for number in range(6):
        own.offer(*honest(own, seed=number))
        assert on_disk(tmp_path) == own.accepted == number + 1
    own.close()


def test_a_full_disk_is_made_good_by_the_next_attempt(tmp_path: Path) -> None:
    own = Server(asked(), turned_away=1e-6, folder=tmp_path)
    assert own._held._kept is not None
    database = own._held._kept._database
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    refused, last = None, honest(own)
    for number in range(400):
        answer = honest(own, seed=number)
        try:
            own.offer(*answer)
        except OSError as error:
            refused, last = error, answer
            break
    assert "full" in str(refused)
    lost = own.accepted
    assert on_disk(tmp_path) == lost - 1
    database.execute(f"PRAGMA max_page_count = {10**6}")
    assert own.offer(*last).reason is Reason.REPEATED
    assert on_disk(tmp_path) == lost
    own.close()


def test_one_folder_has_one_server(tmp_path: Path) -> None:
    with Server(asked(), turned_away=1e-6, folder=tmp_path) as own:
        with pytest.raises(ConfigError, match="another server has it open"):
            Server(asked(), turned_away=1e-6, folder=tmp_path)
        assert own.offer(*honest(own)).accepted
    again = Server(asked(), turned_away=1e-6, folder=tmp_path)
    closing = threading.Thread(target=again.close)  # any thread may
    closing.start()
    closing.join()
    Server(asked(), turned_away=1e-6, folder=tmp_path).close()


def test_only_the_user_may_read_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    Server(asked(), turned_away=1e-6, folder=folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert {path.name for path in folder.iterdir()} == {SPECIFICATION, FILE, LOCK}


def test_threads_may_share_a_server(tmp_path: Path) -> None:
    outcomes: list[bool] = []

    with Server(asked(), turned_away=1e-6, folder=tmp_path) as own:
        answers = [honest(own, seed=number) for number in range(80)]

        def offer(mine: slice) -> None:
            outcomes.extend(own.offer(*one).accepted for one in answers[mine])

        threads = [threading.Thread(target=offer, args=(slice(first, None, 4),)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        accepted = own.accepted
    assert len(outcomes) == 80
    assert sum(outcomes) == accepted
    with Server.open(tmp_path) as again:
        assert again.accepted == accepted


def test_an_answer_is_known_again_as_long_as_what_it_was_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_pool, "REMEMBERED", 2)
    own = Server(asked(instances=2), turned_away=1e-6, history=10)
    first = honest(own, seed=0)
    assert own.offer(*first).reason is Reason.ACCEPTED
    for number in range(1, 60):
        own.offer(*honest(own, seed=number))
        assert own.offer(*first).reason in (Reason.REPEATED, Reason.LATE)
    assert len(own._held._taken) == known_again(history=10, instances=2) == 42


def test_the_statement_is_about_a_contribution_and_a_device() -> None:
    per_model, per_feature = (Server(asked(privacy=unit)).statement() for unit in ("model", "feature"))
    assert "All 4 released numbers together are private with epsilon = 2" in per_model
    assert "someone who sees the whole contribution" in per_model
    assert "right at most 88.08 %" in per_model
    assert "its own ledger" in per_model
    assert "Each of the 4 released numbers, on its own" in per_feature
    assert "someone who sees each released number on its own" in per_feature
