import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd import SeededRandomness, Server
from incrowd.drawdiscard import Reason, server
from incrowd.drawdiscard.pool import Snapshot
from incrowd.errors import ConfigError, DataError
from tests.drawdiscard.mail import asked, phone

SEEDED = SeededRandomness(seed=3)


def honest(of: Server, seed: int = 1) -> Any:
    """An answer of noise alone."""
    stream = SeededRandomness(seed=seed).stream("noise")
    scale = of.specification.gamma * of.specification.mechanism.noise_scale
    return of.draw().weights + scale * stream.laplaces(of.specification.size)


def test_devices_learn_a_model_that_predicts() -> None:
    """The responses are all no for friends and all yes for shops; a large epsilon, so that a few devices are enough."""
    with Server(asked(epsilon=1e3, gamma=0.5, instances=2)) as own:
        outcomes = [phone(first=number).contribute(own) for number in range(60)]
        assert sum(outcome.accepted for outcome in outcomes) > 50
        friend, shop = own.model().predict([{"sender": "friend", "words": 250}, {"sender": "shop", "words": 250}])
    assert friend < 0.4
    assert shop > 0.6


def test_an_outcome_says_whether_and_why_not() -> None:
    own = Server(asked(), turned_away=1e-6)
    update = honest(own)
    print_ = own.specification.fingerprint
    assert str(own.offer(update, print_)) == "accepted: it has replaced an instance of the pool"
    assert str(own.offer(update + 1e3, print_)).startswith("turned away: hardly an honest device")
    assert own.offer(update[:2], print_).reason is Reason.NOT_WEIGHTS
    assert own.offer(update, "").reason is Reason.OTHER_SPECIFICATION
    assert own.accepted == 1


def test_opened_again_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = Server(asked(), turned_away=1e-6, randomness=SEEDED)
    own = Server(asked(), turned_away=1e-6, folder=tmp_path, randomness=SEEDED)
    for number in range(40):
        if number % 7 == 3:
            own.close()
            own = Server(asked(), turned_away=1e-6, folder=tmp_path, randomness=SEEDED)
        updates = [honest(one, seed=number) for one in (whole, own)]
        assert np.array_equal(*updates)
        print_ = own.specification.fingerprint
        assert whole.offer(updates[0], print_) == own.offer(updates[1], print_)
    assert own.snapshot().to_bytes() == whole.snapshot().to_bytes()
    own.close()


def test_a_folder_knows_its_specification(tmp_path: Path) -> None:
    with Server(asked(), turned_away=1e-6, folder=tmp_path) as own:
        before = own.snapshot().to_bytes()
    with Server.open(tmp_path) as again:
        assert again.specification == asked()
        assert again.snapshot().to_bytes() == before
    with pytest.raises(ConfigError, match="no server was begun"):
        Server.open(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("every", "lost"), [(1, 0), (4, 2)])
def test_what_was_accepted_is_on_disk(tmp_path: Path, every: int, lost: int) -> None:
    own = Server(asked(), turned_away=1e-6, folder=tmp_path, keep_every=every)
    for number in range(6):
        own.offer(honest(own, seed=number), own.specification.fingerprint)
    on_disk = Snapshot.from_bytes((tmp_path / server.POOL).read_bytes())
    assert own.accepted - on_disk.discards == lost
    own.close()
    assert Snapshot.from_bytes((tmp_path / server.POOL).read_bytes()).discards == own.accepted


def test_a_full_disk_is_made_good_by_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Server(asked(), turned_away=1e-6, folder=tmp_path)
    update = honest(own)
    with monkeypatch.context() as full:
        full.setattr("incrowd._files.sync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
        full.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
        with pytest.raises(OSError, match="no space"):
            own.offer(update, own.specification.fingerprint)
    assert Snapshot.from_bytes((tmp_path / server.POOL).read_bytes()).discards == 0
    assert own.offer(update, own.specification.fingerprint).reason is Reason.REPEATED
    assert Snapshot.from_bytes((tmp_path / server.POOL).read_bytes()).discards == 1
    own.close()


def test_one_folder_has_one_server(tmp_path: Path) -> None:
    with Server(asked(), turned_away=1e-6, folder=tmp_path) as own:
        with pytest.raises(ConfigError, match="another server has it open"):
            Server(asked(), turned_away=1e-6, folder=tmp_path)
        assert own.offer(honest(own), own.specification.fingerprint).accepted
    again = Server(asked(), turned_away=1e-6, folder=tmp_path)
    closing = threading.Thread(target=again.close)  # any thread may
    closing.start()
    closing.join()
    Server(asked(), turned_away=1e-6, folder=tmp_path).close()


def test_a_closed_server_writes_nothing_over_its_successor_s_pool(tmp_path: Path) -> None:
    own = Server(asked(), turned_away=1e-6, folder=tmp_path)
    own.close()
    update = honest(own)
    with Server.open(tmp_path) as successor:
        with pytest.raises(ConfigError, match="open it again"):
            own.offer(update, own.specification.fingerprint)
        assert successor.offer(honest(successor), own.specification.fingerprint).accepted
    assert Snapshot.from_bytes((tmp_path / server.POOL).read_bytes()).discards == 1


def test_a_folder_of_another_specification_is_refused(tmp_path: Path) -> None:
    Server(asked(), turned_away=1e-6, folder=tmp_path).close()
    with pytest.raises(ConfigError, match="another specification"):
        Server(asked(name="other"), folder=tmp_path)
    Server(asked(), turned_away=1e-6, folder=tmp_path).close()  # the refused one holds no lock


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b'{"pool": 1}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    Server(asked(), turned_away=1e-6, folder=tmp_path).close()
    (tmp_path / server.POOL).write_bytes(content)
    with pytest.raises(DataError, match=rf"{server.POOL} cannot be used"):
        Server(asked(), turned_away=1e-6, folder=tmp_path)


def test_only_the_user_may_read_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    Server(asked(), turned_away=1e-6, folder=folder).close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert {path.name for path in folder.iterdir()} == {server.SPECIFICATION, server.POOL, server.LOCK}


def test_threads_may_share_a_server(tmp_path: Path) -> None:
    outcomes: list[bool] = []

    with Server(asked(), turned_away=1e-6, folder=tmp_path, keep_every=10) as own:
        answers = [honest(own, seed=number) for number in range(80)]

        def offer(mine: slice) -> None:
            outcomes.extend(own.offer(one, own.specification.fingerprint).accepted for one in answers[mine])

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


def test_only_the_last_accepted_answers_are_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REMEMBERED", 2)
    own = Server(asked(), turned_away=1e-6)
    updates = [honest(own, seed=number) for number in range(3)]
    reasons = [own.offer(update, own.specification.fingerprint).reason for update in [*updates, updates[2], updates[0]]]
    assert reasons == [Reason.ACCEPTED] * 3 + [Reason.REPEATED, Reason.ACCEPTED]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"instances": 1}, "instances"),
        ({"noise": "none"}, "noise"),
        ({"gamma": 1e290}, "gamma"),
        ({"gamma": 1e-290}, "gamma"),
    ],
)
def test_what_no_spam_test_can_guard_is_refused(tmp_path: Path, changes: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        Server(asked(**changes), folder=tmp_path / "own")
    with pytest.raises(ConfigError, match="keep_every"):
        Server(asked(), turned_away=1e-6, keep_every=0)


def test_the_statement_is_about_a_contribution_and_a_device() -> None:
    per_model, per_feature = (Server(asked(privacy=unit)).statement() for unit in ("model", "feature"))
    assert "All 4 released numbers together are private with epsilon = 2" in per_model
    assert "someone who sees the whole contribution" in per_model
    assert "right at most 88.08 %" in per_model
    assert "its own ledger" in per_model
    assert "Each of the 4 released numbers, on its own" in per_feature
    assert "someone who sees each released number on its own" in per_feature
