"""A server and three parties as real processes on loopback, with TLS and keys."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from incrowd.errors import ConfigError
from incrowd.flower.superlink import SuperLink
from tests import nginx
from tests.flower.deployment import NAMES, ROOT, Deployment, expected, free_port, runs, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path) as made:
        made.start()
        yield made


@nginx.missing
def test_all_parties_answer_what_they_are_asked_through_nginx(tmp_path: Path) -> None:
    with Deployment(tmp_path, proxied=True) as deployment:
        deployment.start()
        for question in (b"one", b"", b"x" * 1_000_000, os.urandom(9_000_000)):
            assert deployment.ask(question) == expected(question)
        assert deployment.link.present() == frozenset(NAMES)


def test_a_handler_that_fails_says_nothing_of_the_data_and_the_party_stays(deployment: Deployment) -> None:
    assert deployment.ask(b"zero") == expected(b"zero")
    assert deployment.ask(b"fail", timeout=12.0) == {}
    assert deployment.ask(b"one") == expected(b"one")
    logs = b"".join((deployment.folder / f"{name}.log").read_bytes() for name in NAMES)
    assert b"ValueError" in logs
    assert b"sesame" not in logs


def test_too_long_an_answer_counts_as_an_empty_one_and_keeps_no_other_from_arriving(deployment: Deployment) -> None:
    question = b"x" * 200_000
    assert deployment.ask(question, longest=100_000) == dict.fromkeys(NAMES, b"")
    assert deployment.ask(b"one") == expected(b"one")


def test_a_superlink_that_is_killed_is_started_again_and_the_answers_are_the_same(deployment: Deployment) -> None:
    assert deployment.ask(b"before") == expected(b"before")
    deployment.kill_server("superlink")
    assert deployment.ask(b"after") == expected(b"after")
    deployment.ask(b"x", timeout=0.2)  # this one is on its way
    deployment.kill_server("superlink")
    assert deployment.ask(b"x") == expected(b"x")


def test_a_party_that_is_killed_while_it_answers_answers_in_its_next_life_at_once(deployment: Deployment) -> None:
    assert deployment.ask(b"one") == expected(b"one")
    owners = deployment.link.push(list(deployment.link.nodes.values()), b"die now", 60.0)
    wait_for(lambda: all((deployment.folder / name / "died").exists() for name in NAMES))
    for name in NAMES:
        deployment.parties[name].wait()
    deployment.start()
    names, found = {number: name for name, number in deployment.link.nodes.items()}, dict[str, bytes]()

    def come() -> bool:
        found.update({names[owners[q]]: answer for q, answer in deployment.link.pull(list(owners), 1000)})
        return len(found) == len(NAMES)

    wait_for(come, 50)  # without the trick with its number, a minute would not do; and nobody asked again
    assert found == expected(b"die now")


def test_a_party_that_was_removed_is_let_in_no_more(deployment: Deployment) -> None:
    assert deployment.ask(b"one") == expected(b"one")
    deployment.link.remove("birch")
    assert set(deployment.ask(b"two")) == {"amber", "cedar"}
    with pytest.raises(ConfigError, match="is not enrolled"):
        deployment.link.remove("birch")


def test_nothing_that_parties_sent_is_on_the_servers_disk_and_its_files_are_its_own(deployment: Deployment) -> None:
    answers = deployment.ask(b"y" * 100_000)
    files = [path for path in (deployment.folder / "serving").rglob("*") if path.is_file()]
    assert files
    for path in files:
        content = path.read_bytes()
        assert not any(answer[:32] in content for answer in answers.values())
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_a_second_server_in_the_same_folder_and_one_on_the_same_port_are_refused(
    deployment: Deployment, tmp_path: Path
) -> None:
    again = SuperLink(tmp_path / "serving", [], keys=deployment.keys, port=free_port())
    with pytest.raises(ConfigError, match="serves from it already"), again:
        pass
    other = SuperLink(tmp_path / "other", [], keys=deployment.keys, port=deployment.port)
    with pytest.raises(ConfigError, match="nothing can listen there"), other:
        pass
    assert deployment.ask(b"one") == expected(b"one")


def test_all_that_a_server_started_ends_with_it_when_it_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tests.flower.deployment import Deployment;"
        "folder = Path(sys.argv[1]); deployment = Deployment(folder); deployment.__enter__();"
        "numbers = ' '.join(map(str, deployment.link.processes.values()));"
        "(folder / 'part').write_text(numbers); (folder / 'part').rename(folder / 'numbers'); time.sleep(60)"
    )
    server = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        wait_for((tmp_path / "numbers").exists, 60)
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait()
    numbers = [int(word) for word in (tmp_path / "numbers").read_text().split()]
    assert len(numbers) == 1
    wait_for(lambda: not any(runs(number) for number in numbers), 10)
