"""A malicious service: it lies to its devices, asks for one thing many times over, or reads their examples off a clock.

Nothing is spent, nothing released, nobody's memory filled: what repeats is priced as often as it is repeated, and an
answer leaves at a pace that does not depend on the examples.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd import Device, Server, Specification
from incrowd._random import SeededRandomness
from incrowd.drawdiscard import Policy
from incrowd.errors import ConfigError, IncrowdError, SpecificationRefused
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.service.remote import RemoteServer, take_turns
from tests.drawdiscard import mail
from tests.service.listener import Listener, Request, Say, changed, drawing, dripping, endless, honest, instead, reply

pytestmark = pytest.mark.filterwarnings("ignore:none of the examples")


OWN = Policy(epsilon=2.0, daily_epsilon=100.0, budget=Budget(epsilon=1000.0, delta=1e-9))
HONEST = Server(mail.asked(), turned_away=1e-9)
NAN = b"\x00\x00\xc0\x7f"


def spelt(**changes: object) -> Say:
    return instead(HONEST, "/v1/specification", reply(200, mail.asked(**changes).to_json().encode()))


FINGERPRINT = HONEST.specification.fingerprint.encode()
LIES = {
    "another fingerprint": lambda: changed(HONEST, "/v1/draw", FINGERPRINT, FINGERPRINT[::-1]),
    "no fingerprint": lambda: changed(HONEST, "/v1/draw", b"incrowd-fingerprint", b"incrowd-other"),
    "weights of one more": lambda: instead(HONEST, "/v1/draw", drawing(HONEST, bytes(20))),
    "weights that are no numbers": lambda: instead(HONEST, "/v1/draw", drawing(HONEST, NAN * 4)),
    "a gamma that is no number": lambda: changed(HONEST, "/v1/draw", b"incrowd-gamma: 0.05", b"incrowd-gamma: nan"),
    "endless weights": lambda: instead(HONEST, "/v1/draw", endless(b"HTTP/1.1 200 so\r\n\r\n")),
    "endless headers": lambda: instead(HONEST, "/v1/draw", endless(b"HTTP/1.1 200 so\r\n", more=b"a: b\r\n" * 1000)),
    "an endless specification": lambda: instead(HONEST, "/v1/specification", endless(b"HTTP/1.1 200 so\r\n\r\n")),
    "a slow drip": lambda: instead(HONEST, "/v1/draw", dripping(drawing(HONEST, bytes(16)))),
    "epsilon above the limit": lambda: spelt(epsilon=2.1),
    "no noise": lambda: spelt(noise="none"),
    "another specification than that of the weights": lambda: spelt(name="other"),
    "a million instances": lambda: spelt(instances=1_000_000),
    "a field that is not there": lambda: changed(HONEST, "/v1/specification", b'"words"', b'"words_of"'),
    "none": lambda: honest(HONEST),
    "elsewhere": lambda: instead(HONEST, "/v1/draw", reply(302, b"", location="http://127.0.0.1:1/v1/draw")),
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("incrowd.service.remote.PACE_S", 0.0)


@pytest.mark.parametrize("lie", LIES)
def test_nothing_is_spent_or_sent(tmp_path: Path, lie: str) -> None:
    begun = time.monotonic()
    with (
        Listener(LIES[lie]()).listening() as listener,
        Device(mail.mails(), ledger=tmp_path / "ledger", policy=OWN) as own,
    ):
        if lie == "none":  # the control
            assert take_turns(own, RemoteServer(listener.url, deadline_s=60.0)).accepted == 1  # machines are busy
            return
        turns = take_turns(own, RemoteServer(listener.url, deadline_s=1.0), times=2)
        assert isinstance(turns.stopped, IncrowdError)
        assert (turns.sent, mail.charges(own.ledger)) == (0, 0)
    assert not [request for request in listener.heard if request.method == "POST"]
    assert not (tmp_path / "ledger.outbox").exists()
    assert time.monotonic() - begun < 10


def test_what_a_service_says_never_reaches_the_owners_terminal(tmp_path: Path) -> None:
    escape = b"\x1b]0;owned\x07"
    says = [
        instead(HONEST, "/v1/draw", b"HTTP/1.1 200 " + escape + b"\r\ncontent-length: 3\r\n\r\nabc"),
        instead(HONEST, "/v1/draw", escape + b"\r\n\r\n"),
        instead(HONEST, "/v1/draw", reply(503, escape, retry_after=escape.decode("latin-1"))),
        instead(HONEST, "/v1/answer", reply(400, b'{"reason": "\x1b[2J"}')),
        changed(HONEST, "/v1/draw", b"incrowd-gamma: 0.05", b"incrowd-gamma: " + escape),
        changed(HONEST, "/v1/specification", b'"clip"', b'"\\u001b[2J"'),
        changed(HONEST, "/v1/specification", b'"name":"mail"', b'"name":"mail", "\\u001b[2J": 1'),
        changed(HONEST, "/v1/specification", b'"response":"opened"', b'"response":"\\u001b[2J"'),
    ]
    for number, say in enumerate(says):
        with (
            Listener(say).listening() as listener,
            Device(mail.mails(), ledger=tmp_path / str(number), policy=OWN) as own,
        ):
            turns = take_turns(own, RemoteServer(listener.url, deadline_s=5.0))
            assert turns.stopped is not None
            assert str(turns.stopped).isprintable()


def test_a_copy_has_the_noise_and_the_fingerprint_of_what_it_states() -> None:
    """A service that changes the epsilon that devices are told, and not the noise that they add, would gain from it."""
    first = mail.asked(epsilon=8.0)
    before = first.fingerprint, first.mechanism.epsilon, first.size
    copy = first.model_copy(update={"epsilon": 1.0})
    assert (copy.epsilon, copy.mechanism.epsilon) == (1.0, 1.0)
    assert copy.fingerprint == Specification.from_json(copy.to_json()).fingerprint != before[0]
    assert (first.fingerprint, first.mechanism.epsilon, first.size) == before
    assert first.model_copy(deep=True) == first  # the control: without changes
    with pytest.raises(ConfigError, match="epsilon"):
        first.model_copy(update={"epsilon": -1.0})


EPSILON = 1.099
PER_FEATURE = Policy(unit="feature", epsilon=EPSILON, daily_epsilon=EPSILON, budget=Budget(epsilon=20.0, delta=1e-9))
BLIND = replace(PER_FEATURE, epsilon=1e9, daily_epsilon=1e9, budget=Budget(epsilon=1e9, delta=1e-9))
ATTACK: dict[str, object] = {"name": "attack", "gamma": 1.0, "clip": 0.01, "epsilon": EPSILON, "privacy": "feature"}
WIDE = {"type": "category", "levels": [f"{number}" for number in range(200)]}
ALWAYS_ONE = {"type": "number", "low": -1e9, "high": -1e8}


def phone(label: int, policy: Policy, seed: int) -> Device:
    ledger = Ledger.in_memory(budget=policy.budget, relation=Relation.REPLACE_ONE)
    row: dict[str, Any] = {"y": label, "x": 1.0, "z": 1.0, **{f"c{number}": 0.0 for number in range(40)}}
    return Device([row], ledger=ledger, policy=policy, randomness=SeededRandomness(seed=seed))


def crossed() -> Specification:
    """Columns whose range lies below every value, so that each feature is 1, crossed each with each."""
    fields = {"y": {"type": "boolean"}, **{f"c{number}": ALWAYS_ONE for number in range(40)}}
    return Specification.from_formula(f"y ~ ({' + '.join(list(fields)[1:])})^2", **{**ATTACK, "fields": fields})


def seen_again() -> Specification:
    """One column in hundreds of fields."""
    fields: dict[str, object] = {"y": {"type": "boolean"}}
    fields |= {f"f{number}": {**ALWAYS_ONE, "column": "x"} for number in range(800)}
    return Specification.from_formula("y ~ .", **{**ATTACK, "fields": fields})


def label_of(device: Device, asked: Specification) -> int:
    """What the server reads: the mean of all numbers, over as many copies of one and the same noise-free number."""
    step = -device.answer(asked.to_json(), np.zeros(asked.size))
    return int(step.mean() < 0)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [crossed, seen_again])
def test_control_a_device_that_prices_each_number_alone_tells_its_label(ask: Any) -> None:
    right = sum(label_of(phone(label, BLIND, seed), ask()) == label for seed in range(10) for label in (0, 1))
    assert right >= 19


@pytest.mark.parametrize("ask", [crossed, seen_again])
def test_what_is_repeated_is_refused_before_anything_is_spent(ask: Any) -> None:
    own = phone(1, PER_FEATURE, 0)
    with pytest.raises(SpecificationRefused, match=r"a contribution would cost epsilon = .* per feature"):
        own.answer(ask().to_json(), np.zeros(ask().size))
    assert own.ledger.charges() == (0, 0)


def test_who_allows_the_repeats_still_has_a_limit_on_the_whole() -> None:
    """Single numbers, each of its own column: none is repeated, and the label is in all of them."""
    fields = {"y": {"type": "boolean"}, **{f"c{number}": ALWAYS_ONE for number in range(40)}}
    asked = Specification.from_formula("y ~ .", **{**ATTACK, "fields": fields})
    assert asked.repeats == 1
    own = phone(1, PER_FEATURE, 0)
    with pytest.raises(SpecificationRefused, match=r"all 41 numbers .* would cost .* allows 10\.99"):
        own.answer(asked.to_json(), np.zeros(41))
    allowed = phone(1, replace(PER_FEATURE, whole_epsilon=50.0), 0)
    allowed.answer(asked.to_json(), np.zeros(41))
    assert allowed.spent_today() == pytest.approx(EPSILON)


@pytest.mark.parametrize(
    ("formula", "changes", "repeats"),
    [
        ("y ~ x", {}, 1),
        ("y ~ x * z", {}, 2),
        ("y ~ x * w", {}, 201),
        ("y ~ x + again", {}, 2),
        ("y ~ x * again", {}, 4),
        ("w ~ x", {"link": "multinomial"}, 200),
    ],
)
def test_repeats_by_hand(formula: str, changes: dict[str, object], repeats: int) -> None:
    number = {"type": "number", "low": 0, "high": 1}
    fields = {"y": {"type": "boolean"}, "x": number, "z": number, "w": WIDE, "again": {**number, "column": "x"}}
    assert Specification.from_formula(formula, **{**ATTACK, "fields": fields, **changes}).repeats == repeats


PACE_S = 2.0
POLICY = Policy()


def doctor(texts: int, examples: int = 20) -> Specification:
    text = {"type": "text", "column": "note", "buckets": 2, "units": "characters", "shortest": 1, "longest": 12}
    fields: dict[str, Any] = {f"note{number}": text for number in range(texts)}
    return Specification.of(
        {
            "name": "doctor",
            "fields": {"diagnosis": {"type": "category", "levels": ["the one", "no other"]}, **fields},
            "response": "diagnosis",
            "terms": [[name] for name in fields],
            "link": "multinomial",
            "examples": examples,
            "epsilon": 2.0,
            "gamma": 0.05,
            "clip": 0.2,
            "instances": 4,
        }
    )


def seconds(diagnosis: str, pace_s: float) -> float:
    """From the draw of a patient's device to its answer, by the server's clock."""
    server = Server(doctor(texts=2), turned_away=1e-6)
    heard: list[float] = []
    replied: list[float] = []

    def say(request: Request) -> bytes:
        heard.append(time.monotonic())
        said = talk(request)
        assert isinstance(said, bytes)
        replied.append(time.monotonic())
        return said

    talk = honest(server)
    rows = [{"diagnosis": diagnosis, "note": f"{number} how the patient is " * 15} for number in range(10)]
    ledger = Ledger.in_memory(budget=POLICY.budget, relation=Relation.REPLACE_ONE)
    with Listener(say).listening() as listener, Device(rows, ledger=ledger, policy=POLICY) as own:
        assert own.contribute(RemoteServer(listener.url, pace_s=pace_s)).accepted
    return heard[-1] - replied[-2]


@pytest.mark.slow
def test_the_time_from_draw_to_answer_tells_nothing() -> None:
    has, has_not = seconds("the one", PACE_S), seconds("another one", PACE_S)
    assert has_not == pytest.approx(PACE_S, abs=0.3)
    assert has % PACE_S == pytest.approx(0, abs=0.3)


def test_without_a_pace_it_does() -> None:
    """The control."""
    assert seconds("the one", 0) > 3 * seconds("another one", 0)


def test_no_more_work_is_done_than_fits_into_a_pace() -> None:
    columns = ["diagnosis", "note"]
    POLICY.check(doctor(texts=2), columns)
    with pytest.raises(SpecificationRefused, match="pieces of text are more than this device allows"):
        POLICY.check(doctor(texts=5), columns)
    with pytest.raises(SpecificationRefused, match="pieces of text"):
        POLICY.check(doctor(texts=3, examples=100), columns)
