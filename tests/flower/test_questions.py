from incrowd.flower.questions import Questions


def test_a_question_goes_to_whoever_is_there_and_once() -> None:
    questions = Questions()
    one, two = questions.add("amber", b"?", 10.0), questions.add("birch", b"?", 10.0)
    assert questions.due({"amber": "first"}) == {one: "amber"}
    questions.sent(one, "message", "first")
    assert questions.due({"amber": "first"}) == {}
    assert questions.due({"amber": "first", "birch": "first"}) == {two: "birch"}
    assert questions.waiting([one, two]) == {"message": one}


def test_it_goes_again_to_another_life_of_its_party() -> None:
    questions = Questions()
    one = questions.add("amber", b"?", 10.0)
    questions.sent(one, "message", "first")
    assert questions.due({"amber": "second"}) == {one: "amber"}
    questions.sent(one, "again", "second")
    assert questions.waiting([one]) == {"again": one}


def test_it_goes_again_to_another_life_of_the_superlink() -> None:
    questions = Questions()
    one = questions.add("amber", b"?", 10.0)
    questions.sent(one, "message", "first")
    questions.start_anew()
    assert questions.waiting([one]) == {}
    assert questions.due({"amber": "first"}) == {one: "amber"}


def test_one_that_did_not_go_is_due_still() -> None:
    questions = Questions()
    one = questions.add("amber", b"?", 10.0)
    questions.sent(one, "", "first")
    assert questions.due({"amber": "first"}) == {one: "amber"}


def test_one_whose_message_was_lost_waits_for_another_life() -> None:
    questions = Questions()
    one = questions.add("amber", b"?", 10.0)
    questions.sent(one, "message", "first")
    questions.lost(one)
    assert questions.waiting([one]) == {}
    assert questions.due({"amber": "first"}) == {}
    assert questions.due({"amber": "second"}) == {one: "amber"}


def test_of_a_party_the_latest_question_is_due_and_an_answer_to_any_is_waited_for() -> None:
    questions = Questions()
    old = questions.add("amber", b"?", 10.0)
    questions.sent(old, "message", "first")
    new = questions.add("amber", b"!", 10.0)
    assert questions.due({"amber": "first"}) == {new: "amber"}
    questions.sent(new, "another", "first")
    assert questions.waiting([old, new]) == {"message": old, "another": new}


def test_what_is_answered_or_over_is_gone() -> None:
    questions = Questions()
    one, two = questions.add("amber", b"?", 10.0), questions.add("birch", b"?", 20.0)
    questions.close(one)
    questions.close(one)
    assert questions.due({"amber": "first"}) == {}
    questions.forget(20.0)
    assert questions.due({"birch": "first"}) == {}
    assert questions.waiting([one, two]) == {}


def test_content_and_time_are_kept() -> None:
    questions = Questions()
    one = questions.add("amber", b"?", 10.0)
    assert questions.content(one) == b"?"
    assert (questions.left(one, 4.0), questions.left(one, 11.0)) == (6.0, 0.0)


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
