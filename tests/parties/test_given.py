"""`incrowd party show`: what a party has given, for its owner."""

import pytest

from incrowd.errors import SpecificationRefused
from tests.command import command
from tests.parties.parties import SERVER, Made, asked, offer_for, plan_of


def test_a_party_sees_what_it_gave_to_whom_and_at_what_noise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], made: Made
) -> None:
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    for number in (0, 2):
        party.answer(asked(offer, number))
    with pytest.raises(SpecificationRefused):
        party.answer(asked(offer, 1))
    party.close()
    run = command(monkeypatch, capsys, "party", "show")
    for place in (made.folder, made.folder / "ledger.sqlite"):
        found = run(str(place), "--json").object()
        assert [(row["round"], row["noise_multiplier"], row["asked"]) for row in found["events"]] == [
            (0, 1.0, True),
            (1, 1.0, False),
            (2, 1.0, True),
        ]
        assert {(row["plan"], row["server"]) for row in found["events"]} == {
            (offer.fingerprint, party.identity.server_name)
        }
        assert 0 < found["epsilon"] < found["promised"]
        assert found["delta"] == 1e-3
        assert found["intact"]
        assert [each["round"] for each in found["refused"]] == [1]
    watched = run(str(made.folder), "--metrics").out
    for line in ('epsilon{of="budget"} ', 'questions{of="refused"} 1\n', 'ledger{of="intact"} 1\n'):
        assert f"incrowd_party_{line}" in watched
    done = run(str(made.folder))
    assert done.status == 0
    assert "round 1 comes after round 2" in done.out


def test_what_is_no_party_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], made: Made
) -> None:
    done = command(monkeypatch, capsys, "party", "show")(str(made.folder / "nothing"))
    assert done.status == 2
    assert "give the ledger of a party" in done.err


def test_a_ledger_that_was_edited_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], made: Made
) -> None:
    offer = offer_for(plan_of())
    party = made.start()
    party.answer(offer.to_bytes(SERVER))
    party.answer(asked(offer, 0))
    party.close()
    (made.folder / "answers.sqlite").unlink()
    run = command(monkeypatch, capsys, "party", "show")
    found = run(str(made.folder), "--json").object()
    assert (len(found["events"]), found["refused"]) == (1, [])
    (made.folder / "ledger.sqlite").write_bytes(b"nothing of the kind")
    done = run(str(made.folder), "--json")
    assert done.status == 1
    assert not done.object()["intact"]
