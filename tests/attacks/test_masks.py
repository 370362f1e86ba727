"""What a server with full control of the network, with two of five parties on its side, and parties that lie would try.

The server learns a sum over one list with the noise of that list, or words that look fair. Each attack has a control:
an honest round that works, or the same trick where it would work.
"""

import shutil
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError, IncrowdError, SpecificationRefused
from incrowd.parties.roster import Card, Roster
from incrowd.parties.secure_sum import SumServer
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.paid import ShareRun
from tests.parties.crew import Crew, content_of, key_of, plan_of, question, signed
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in

pytestmark = [pytest.mark.watched, pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning")]

FAIR = 420  # a chi-square number of 255 degrees passes this once in 10^9 times


@pytest.fixture
def crew(tmp_path: Path) -> Crew:
    return Crew(tmp_path, parties=5, colluders=2, size=20_000)


def words(frame: bytes, size: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    return np.frombuffer(frame[-64 - 2 * size : -64], np.uint16)


def odd(crew: Crew, *frames: bytes, signs: Floats | None = None) -> float:
    """How far the high bytes of a sum of answers are from fair; far beyond `FAIR` for a sum that tells anything."""
    chosen = np.ones(len(frames)) if signs is None else signs
    total = np.zeros(crew.size, np.uint16)
    for sign, frame in zip(chosen, frames, strict=True):
        total += words(frame, crew.size) if sign > 0 else -words(frame, crew.size)
    counts = np.bincount(total >> 8, minlength=256)
    return float(((counts - crew.size / 256) ** 2 / (crew.size / 256)).sum())


def test_two_lists_in_one_round_add_up_to_garbage(crew: Crew) -> None:
    """Half of the parties hear of four, the others of five: neither sum has the masks that cancel."""
    ready = crew.ready(0)
    everyone = crew.server.listed(0, ready, question=question())
    few = {name: ready[name] for name in crew.names[:4]}
    short = SumServer(crew.plan, key=key_of("the server")).listed(0, few, question=question())
    mixed = [crew.answer(name, 0, short) for name in crew.names[:2]]
    mixed += [crew.answer(name, 0, everyone) for name in crew.names[2:]]
    assert max(odd(crew, *mixed), odd(crew, *mixed[:2]), odd(crew, *mixed[:4])) < FAIR
    for name, listed in ((crew.names[0], everyone), (crew.names[2], short)):
        crew.ready(0, [name])
        with pytest.raises(SpecificationRefused, match="with another list"):
            crew.answer(name, 0, listed)
    assert odd(crew, *crew.answers(1).values()) > 10_000  # the control: one list


def test_two_weight_vectors_in_one_round_add_up_to_garbage(crew: Crew) -> None:
    """Parties that train from different weights could be told apart by their sum."""
    first = crew.server.listed(0, crew.ready(0, asked="weights A"), question=question("weights A"))
    _, told = (
        crew.ready(0, crew.names[:2], asked="weights B"),
        content_of("list", first, key=key_of("the server").public_key()),
    )
    for name in crew.names[:2]:
        with pytest.raises(SpecificationRefused, match="not ready for"):
            crew.answer(name, 0, first)
    fresh = {name: crew.members[name]._ready for name in crew.names[:2]}
    parties = {**told[0]["parties"], **{name: its[3] for name, its in fresh.items() if its}}
    second = signed(
        "list", {**told[0], "question": question("weights B"), "parties": parties}, key=key_of("the server")
    )
    mixed = [crew.answer(name, 0, second if name in fresh else first) for name in crew.names]
    assert odd(crew, *mixed) < FAIR
    assert odd(crew, *crew.answers(1).values()) > 10_000


def test_a_late_answer_tells_nothing_beside_the_next_round(crew: Crew) -> None:
    """A round is called lost, its last answer kept, and the next is asked of all others: their difference has the
    noise of both, and no mask comes twice.
    """
    whole, rest = crew.answers(0), crew.answers(1, crew.names[:4])
    difference = crew.server.total(0, whole).values - crew.server.total(1, rest).values
    true = sum(crew.part(name, 0).values for name in crew.names) - sum(
        crew.part(name, 1).values for name in crew.names[:4]
    )
    noise = crew.plan.noise(0)
    planned = np.hypot(noise.released_std(5), noise.released_std(4))
    assert float((difference - true).std()) == pytest.approx(planned, rel=0.05)
    assert odd(crew, whole["party 0"], rest["party 0"], signs=np.array([1.0, -1.0])) < FAIR
    one = whole["party 0"]
    assert odd(crew, one, one, signs=np.array([1.0, -1.0])) > 10_000  # the control: one mask twice is no mask


def forged(crew: Crew, *, by: str = "the server", **changes: object) -> bytes:
    """A list such as a server that plays by no rule signs, with the right random numbers."""
    heads = [content_of("ready", frame, key=key_of(name).public_key())[0] for name, frame in crew.ready(0).items()]
    form: dict[str, Any] = {"plan": crew.plan.name, "label": crew.label, "round": 0, "question": question()}
    form["parties"] = {head["party"]: head["random"] for head in heads}
    names = changes.pop("names", None)
    if isinstance(names, list):
        form["parties"] = {name: form["parties"].get(name, "0" * 64) for name in names}
    return signed("list", {**form, **changes}, key=key_of(by))


@pytest.mark.parametrize("colluding", [2, 1])
def test_a_list_that_colluders_fill_is_refused(crew: Crew, colluding: int) -> None:
    names = crew.names[:colluding]
    with pytest.raises(SpecificationRefused, match="may all collude"):
        crew.answer(names[0], 0, forged(crew, names=names))
    assert crew.runs[names[0]].ledger.charges() == (0, 0)
    with pytest.raises(ConfigError, match="may all collude"):
        crew.server.listed(0, crew.ready(0, names), question=question())
    crew.server.total(1, crew.answers(1, crew.names[:3]))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"names": ["party 1", "party 2", "party 3"]}, "without this party"),
        ({"names": ["party 0", "party 1", "party 2", "somebody"]}, "not on the roster"),
        ({"names": ["party 0", "party 1", "PARTY 2"]}, "not on the roster"),
        ({"round": 1}, "not ready for"),
        ({"round": 2**50}, "not ready for"),
        ({"question": question("others")}, "not ready for"),
        ({"plan": "another"}, "another plan"),
        ({"by": "party 1"}, "signature"),
        ({"round": 0.0}, "does not say which plan, round"),
        ({"round": -1}, "does not say which plan, round"),
        ({"parties": "party 0"}, "not whole"),
        ({"parties": {"party 0": 1}}, "not whole"),
        ({"more": 1}, "not whole"),
    ],
)
def test_lists_that_no_honest_server_makes_are_refused(crew: Crew, changes: dict[str, Any], why: str) -> None:
    frame = forged(crew, **changes)
    with pytest.raises((SpecificationRefused, DataError), match=why):
        crew.answer("party 0", 0, frame)
    assert crew.runs["party 0"].ledger.charges() == (0, 0)
    crew.answer("party 0", 0, forged(crew))  # the control


def test_rounds_before_are_answered_no_more_and_their_keys_are_gone(crew: Crew, tmp_path: Path) -> None:
    """Who reads a party's disk later finds no key of rounds before, and none of those that led to the first."""
    secret = crew.members["party 0"]
    with secret._turn, secret._state() as state:
        before = {peer: key for peer, _, key in secret._pairs(state)}
    crew.answers(0)
    crew.answers(1)
    file = (tmp_path / "party 0" / "masks.sqlite").read_bytes()
    assert not any(key in file for key in before.values())
    with sqlite3.connect(tmp_path / "party 0" / "masks.sqlite") as read:
        assert read.execute("SELECT agree, kem, secrets FROM plans").fetchall() == [(None, None, None)]
    with pytest.raises(SpecificationRefused, match="was answered, or passed over"):
        crew.answer("party 0", 0, crew.listed(0))


class TestRosters:
    """A server hands the cards around: it may make some up, or nearly copy one."""

    def test_a_colluder_that_copies_a_hello_has_other_keys(self, tmp_path: Path) -> None:
        """X25519 ignores a bit: a key with that bit flipped gives the same secret, under another name."""
        ours, theirs = X25519PrivateKey.generate(), X25519PrivateKey.generate().public_key().public_bytes_raw()
        twin = theirs[:31] + bytes([theirs[31] | 128])
        same = ours.exchange(X25519PublicKey.from_public_bytes(twin))
        assert same == ours.exchange(X25519PublicKey.from_public_bytes(theirs))  # the control: so it would work
        crew = Crew(tmp_path, size=10, agreed=False)
        _, victim = content_of("hello", crew.hellos["party 0"], key=key_of("party 0").public_key(), most=2000)
        body = victim[:31] + bytes([victim[31] | 128]) + victim[32:]
        head = {"plan": crew.plan.name, "party": "party 4"}
        hellos = {**crew.hellos, "party 4": signed("hello", head, body, key=key_of("party 4"))}
        honest = crew.names[:4]
        sealed = {name: crew.members[name].seal(hellos) for name in honest}
        sealed["party 4"] = signed("sealed", head, key=key_of("party 4"))
        for name in honest:
            crew.members[name].agree(hellos, sealed)
        for name in honest[1:]:
            with crew.members[name]._state() as state:
                pairs = {peer: key for peer, _, key in crew.members[name]._pairs(state)}
            assert pairs["party 0"] != pairs["party 4"]
        crew.members["party 4"].seal(crew.hellos)
        with pytest.raises(DataError, match="not those that this party sent"):
            crew.members["party 4"].agree(hellos, sealed)

    @pytest.mark.parametrize("kind", ["hello", "sealed"])
    def test_a_server_that_signs_in_a_party_s_place_is_noticed(self, crew: Crew, kind: str) -> None:
        made = signed(
            kind,
            {"plan": crew.plan.name, "party": "party 3"},
            bytes(crew.plan.length(kind, "party 3")),
            key=key_of("the server"),
        )
        hellos = {**crew.hellos, **({"party 3": made} if kind == "hello" else {})}
        sealed = {**crew.sealed, **({"party 3": made} if kind == "sealed" else {})}
        with pytest.raises(DataError, match="signature"):
            crew.members["party 1"].agree(hellos, sealed)
        for short in ({}, {**crew.hellos, "somebody": crew.hellos["party 0"]}):
            with pytest.raises(DataError, match="of each party of the roster"):
                crew.members["party 1"].agree(short, crew.sealed)
        with pytest.raises(DataError, match="for another plan, or one that is not whole"):
            crew.members["party 1"].agree({**crew.hellos, "party 3": self._hello("another plan")}, crew.sealed)
        crew.members["party 1"].agree(crew.hellos, crew.sealed)  # the control

    def test_parties_with_different_rosters_agree_on_nothing(self, crew: Crew) -> None:
        """A server gives one party a roster in which it plays another party itself."""
        cards = crew.plan.roster.cards
        split = Roster((*cards[:4], Card.of("party 4", key_of("the server"))))
        plan, head = replace(crew.plan, roster=split), {"party": "party 4"}
        fooled = Crew(crew.folder / "fooled", agreed=False).member("party 0", plan=plan)
        hellos = {**crew.hellos, "party 0": fooled.hello()}
        hellos["party 4"] = signed("hello", {**head, "plan": plan.name}, bytes(1216), key=key_of("the server"))
        with pytest.raises(DataError, match="for another plan"):
            fooled.seal(hellos)
        with pytest.raises(DataError, match="for another plan"):
            crew.members["party 1"].agree({**crew.hellos, "party 0": fooled.hello()}, crew.sealed)

    @pytest.mark.parametrize(
        "name", ["PARTY 0", "party\u00a00", "party0", "Party-0", "p\u00e1rty 0", "party o", "PARTY I", "p\u0430rty 0"]
    )
    def test_names_that_people_take_for_one_another_are_refused(self, crew: Crew, name: str) -> None:
        with pytest.raises(ConfigError):
            Roster((*crew.plan.roster.cards, Card.of(name, key_of("another"))))
        Roster((*crew.plan.roster.cards, Card.of("party 10", key_of("another"))))

    def test_one_key_under_two_names_is_refused(self, crew: Crew) -> None:
        with pytest.raises(ConfigError, match="same key"):
            Roster((*crew.plan.roster.cards, Card.of("another name", key_of("party 0"))))
        for spelled in (Card.of("x", key_of("party 0")).key.upper(), " " + Card.of("x", key_of("party 0")).key):
            with pytest.raises(ConfigError, match="small letters"):
                Card(name="another name", key=spelled)

    @staticmethod
    def _hello(plan: str) -> bytes:
        return signed("hello", {"plan": plan, "party": "party 3"}, bytes(1216), key=key_of("party 3"))


class TestOldCopies:
    """A folder, or a part of it, is put back: no noise and no mask comes twice."""

    def test_an_old_copy_of_the_keys_meets_a_ledger_that_knows_more(self, crew: Crew, tmp_path: Path) -> None:
        crew.answers(0)
        kept = (tmp_path / "party 0" / "masks.sqlite").read_bytes()
        crew.answers(1)
        (tmp_path / "party 0" / "masks.sqlite").write_bytes(kept)
        with pytest.raises(ConfigError, match="paid for, and lost"):
            crew.answer("party 0", 1, crew.listed(1))
        crew.server.total(2, crew.answers(2))

    def test_an_old_copy_of_the_whole_folder_gives_no_mask_twice(self, crew: Crew, tmp_path: Path) -> None:
        """The ledger is in the folder, and old with it: the owner's mistake pays twice, and masks hide both answers."""
        crew.runs["party 0"].ledger.close()
        shutil.copytree(tmp_path / "party 0", tmp_path / "old")
        crew.runs["party 0"] = crew.run("party 0")
        listed = crew.server.listed(0, crew.ready(0), question=question())
        answers = {name: crew.answer(name, 0, listed) for name in crew.names}
        crew.runs["party 0"].ledger.close()
        shutil.rmtree(tmp_path / "party 0")
        shutil.copytree(tmp_path / "old", tmp_path / "party 0")
        crew.runs["party 0"], crew.members["party 0"] = crew.run("party 0"), crew.member("party 0")
        with pytest.raises(SpecificationRefused, match="not ready for"):
            crew.answer("party 0", 0, listed)  # the same list would have the same masks
        second = crew.answer("party 0", 0, forged(crew))
        assert odd(crew, answers["party 0"], second, signs=np.array([1.0, -1.0])) < FAIR
        assert odd(crew, second, *(answers[name] for name in crew.names[1:])) < FAIR
        assert odd(crew, *answers.values()) > 10_000  # the control


MOMENTS = {
    "before the charge": Place("privacy/paid.py", "share", "call"),
    "after the charge": Place("privacy/paid.py", "share", "return"),
    "after the noise": Place("mechanism/shared.py", "add", "return"),
    "after the disk": Place("parties/secure_sum.py", "answer", "return"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_party_killed_at_any_moment_uses_no_mask_or_noise_twice(crew: Crew, tmp_path: Path, moment: str) -> None:
    """SIGKILL in the middle of an answer; then the server asks the same, and another list for the same round."""
    crew.runs["party 0"].ledger.close()
    kept = tmp_path / "list"

    def work() -> None:
        crew.runs["party 0"], crew.members["party 0"] = crew.run("party 0"), crew.member("party 0")
        kept.write_bytes(listed := crew.listed(0))
        killed_in(MOMENTS[moment], lambda: crew.answer("party 0", 0, listed))

    assert status_of(start(work)) == -signal.SIGKILL
    crew.runs["party 0"], crew.members["party 0"] = crew.run("party 0"), crew.member("party 0")
    paid = crew.runs["party 0"].ledger.charges()[0]
    assert paid == (moment != "before the charge")
    if moment == "after the disk":
        again = crew.answer("party 0", 0, kept.read_bytes())
        assert again == crew.answer("party 0", 0, kept.read_bytes())
    else:
        with pytest.raises(SpecificationRefused, match="not ready for"):
            crew.answer("party 0", 0, kept.read_bytes())
    if paid:
        with pytest.raises((ConfigError, SpecificationRefused), match=r"paid for, and lost|with another list"):
            crew.answer("party 0", 0, crew.listed(0))
    assert crew.runs["party 0"].ledger.charges()[0] == paid
    crew.server.total(1, crew.answers(1))


def test_a_share_of_a_plan_against_fewer_colluders_is_not_paid_for(crew: Crew) -> None:
    weaker = Crew(crew.folder / "weaker", parties=5, colluders=1, size=10).plan.noise(1)
    with pytest.raises(ConfigError, match="the noise of the plan's round"):
        crew.runs["party 0"].share(1, weaker.share(5))


def test_an_answer_of_another_round_or_party_is_not_added(crew: Crew) -> None:
    before, answers = crew.answers(0), crew.answers(1)
    for wrong in (before["party 2"], answers["party 1"], b"", before["party 2"][:-1]):
        with pytest.raises(DataError):
            crew.server.total(1, {**answers, "party 2": wrong})
    crew.server.total(1, answers)


def test_a_forked_copy_of_a_party_is_ready_for_nothing(crew: Crew) -> None:
    """Two children of a ready process, with the folder put back in between, would give one mask twice."""
    listed = crew.listed(0)
    crew.runs["party 0"].ledger.close()

    def work() -> None:
        crew.runs["party 0"] = crew.run("party 0")
        with pytest.raises(SpecificationRefused, match="not ready for"):
            crew.answer("party 0", 0, listed)

    assert status_of(start(work)) == 0
    crew.runs["party 0"] = crew.run("party 0")
    crew.answer("party 0", 0, listed)  # the control: the process that was ready


@pytest.mark.parametrize("kind", ["long", "short", "subclass"])
def test_parts_that_are_none_of_the_plan_are_refused_before_they_are_paid(crew: Crew, kind: str) -> None:
    class Lying(Whole):
        pass

    part = crew.part("party 0")
    wrong = {
        "long": Whole(steps=5 * part.steps, step=part.step),
        "short": Whole(steps=part.steps[:3], step=part.step),
        "subclass": Lying(steps=part.steps, step=part.step),
    }[kind]
    listed = crew.listed(0)
    with pytest.raises(DataError):
        crew.members["party 0"].answer(listed, wrong, pay=crew.pay("party 0", 0))
    assert crew.runs["party 0"].ledger.charges() == (0, 0)
    crew.answer("party 0", 0, listed)  # the control


def test_a_share_hides_no_more_contributions_than_the_plan_has(crew: Crew) -> None:
    noise = crew.plan.noise(0)
    share = noise.share(5)
    receipt = crew.runs["party 0"].share(0, share)
    part = Whole(steps=np.ones(9, np.int64), step=noise.step)
    with pytest.raises(ConfigError, match="contributions_bound"):
        share.add(part, receipt=receipt, at=("noise", 0, 0), contributions_bound=6)


def test_a_weaker_plan_does_not_go_on_with_a_stronger_one_s_reservation(crew: Crew) -> None:
    """Events of two plans can be equal, and the parties that they hold against not."""
    run = crew.runs["party 0"]
    run.share(0, crew.plan.noise(0).share(5))
    weaker = plan_of(5, colluders=1)
    assert weaker.runs == crew.plan.plan.runs
    other = ShareRun(weaker, ledger=run.ledger, randomness=run.randomness, label="run")
    shared = weaker.shared(1, FixedClip(clip_norm=1.0))
    assert shared is not None
    with pytest.raises(ConfigError, match="another plan"):
        other.share(1, shared.share(5))
    run.share(1, crew.plan.noise(1).share(5))  # the control


@pytest.mark.parametrize("how", ["open to others", "two names", "held by a reader"])
def test_keys_that_others_may_touch_are_refused_unpaid(
    crew: Crew, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, listed = tmp_path / "party 0" / "masks.sqlite", crew.listed(0)
    monkeypatch.setattr("incrowd.privacy.ledger.chain.BUSY_S", 0.2)
    reader = sqlite3.connect(file)
    if how == "open to others":
        file.chmod(0o644)
    if how == "two names":
        (tmp_path / "second").hardlink_to(file)
    if how == "held by a reader":
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM pairs").fetchone()
    with pytest.raises(IncrowdError):
        crew.answer("party 0", 0, listed)
    assert crew.runs["party 0"].ledger.charges() == (0, 0)
    reader.close()
    file.chmod(0o600)
    (tmp_path / "second").unlink(missing_ok=True)
    crew.answer("party 0", 0, listed)  # the control


def test_a_random_number_that_spoils_the_list_is_refused(crew: Crew) -> None:
    head = {"plan": crew.plan.name, "party": "party 4", "round": 0, "question": question(), "random": "0" * 60}
    ready = {**crew.ready(0), "party 4": signed("ready", head, key=key_of("party 4"))}
    with pytest.raises(DataError, match="party 4 sent no random number"):
        crew.server.listed(0, ready, question=question())
