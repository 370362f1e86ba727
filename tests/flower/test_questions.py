from incrowd.flower.superlink import Questions


def test_of_a_party_the_latest_question_is_due_and_an_answer_to_any_is_waited_for() -> None:
    questions = Questions()
    old = questions.add("amber", b"?", 10.0)
    questions.sent(old, "message", "first")
    new = questions.add("amber", b"!", 10.0)
    assert questions.due({"amber": "first"}) == {new: "amber"}
    questions.sent(new, "another", "first")
    assert questions.waiting([old, new]) == {"message": old, "another": new}


def test_of_a_party_that_is_away_one_content_is_kept() -> None:
    questions = Questions()
    numbers = [questions.add("amber", bytes([each]), 10.0) for each in range(100)]
    other = questions.add("birch", b"!", 10.0)
    assert [len(questions.content(each)) for each in numbers] == [0] * 99 + [1]
    assert questions.due({"amber": "first", "birch": "first"}) == {numbers[-1]: "amber", other: "birch"}


def test_one_that_was_followed_by_another_is_not_sent_when_that_is_answered() -> None:
    questions = Questions()
    old, new = questions.add("amber", b"?", 10.0), questions.add("amber", b"!", 10.0)
    questions.start_anew()
    assert questions.due({"amber": "first"}) == {new: "amber"}
    questions.close(new)
    assert questions.due({"amber": "first"}) == {}
    assert questions.waiting([old]) == {}
