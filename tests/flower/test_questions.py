from incrowd.flower.superlink import Questions


def add(questions: Questions, party: str, content: bytes, *, now: float = 0.0) -> str:
    return questions.add(party, content, now=now, seconds=10.0)


def due(questions: Questions, **lives: str) -> list[bytes]:
    return list(questions.due(lives))


def test_of_a_party_the_latest_question_is_due_and_an_answer_to_any_is_waited_for() -> None:
    questions = Questions()
    old = add(questions, "amber", b"?")
    questions.open[old].message, questions.open[old].life = "message", "first"
    new = add(questions, "amber", b"!")
    assert due(questions, amber="first") == [b"!"]
    questions.open[new].message, questions.open[new].life = "another", "first"
    assert due(questions, amber="first") == []
    assert due(questions, amber="second") == [b"!"]
    assert questions.waiting([old, new]) == {"message": old, "another": new}


def test_of_a_party_that_is_away_one_content_is_kept() -> None:
    questions = Questions()
    numbers = [add(questions, "amber", bytes([each])) for each in range(100)]
    add(questions, "birch", b"!")
    assert [questions.open[each].content for each in numbers] == [None] * 99 + [bytes([99])]
    assert due(questions, amber="first", birch="first") == [b"\x63", b"!"]
    add(questions, "birch", b"later", now=11.0)
    assert len(questions.open) == 1, "what has expired is forgotten"


def test_one_that_was_followed_by_another_is_not_sent_when_that_is_answered() -> None:
    questions = Questions()
    old, new = add(questions, "amber", b"?"), add(questions, "amber", b"!")
    questions.start_anew()
    assert due(questions, amber="first") == [b"!"]
    del questions.open[new]
    assert due(questions, amber="first") == []
    assert questions.waiting([old]) == {}
