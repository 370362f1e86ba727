"""`incrowd serve` as people start it: where it listens, what it refuses, how it ends, several processes."""

import re
import signal
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from tests.command import Command, command
from tests.drawdiscard.mail import asked
from tests.service.nginx import free_port
from tests.service.processes import ServeProcess, serve_process, until
from tests.service.redis_process import RedisProcess


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.json").write_text(asked().to_json())
    return command(monkeypatch, capsys)


def contributed(process: ServeProcess, count: int, *, seed: int = 0) -> int:
    drawn = process.ask("/v1/draw")
    accepted = 0
    for number in range(count):
        got = process.contribute(drawn, seed=seed + number)
        accepted += got.status == 200
        drawn = got if got.status == 200 else process.ask("/v1/draw")
    return accepted


def test_it_serves_and_a_signal_ends_it_with_all_kept(tmp_path: Path) -> None:
    with serve_process(tmp_path, asked(), "--keep-every", "1000") as process:
        accepted = contributed(process, 20)
        assert accepted > 15
        assert process.accepted() == accepted
        assert process.stop() == (0, "")
        process.start()
        assert process.accepted() == accepted
        process.process.send_signal(signal.SIGINT)
        assert process.stop() == (0, "")
    assert (tmp_path / "spec.pool" / "pool.sqlite").exists()


@pytest.mark.slow
def test_the_first_commands_of_its_page_work_in_an_empty_directory(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    port = str(free_port())
    made, serves, contributes = re.findall(
        r"^```bash\n(.*?)^```$", page.replace("8000", port), re.MULTILINE | re.DOTALL
    )
    subprocess.run(["bash", "-ec", made], cwd=tmp_path, check=True, timeout=60)
    with subprocess.Popen(["bash", "-c", "exec " + serves], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith(f"listens at http://127.0.0.1:{port}, which only this machine")
            told = subprocess.run(
                ["bash", "-ec", contributes], check=False, cwd=tmp_path, capture_output=True, timeout=120, text=True
            )
        finally:
            server.terminate()
            server.wait(30)
    assert told.returncode == 0, told.stderr
    assert re.search(r"sent\W+1\b", told.stdout)


@pytest.mark.slow
def test_several_processes_share_a_redis_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    redis = RedisProcess(tmp_path, aof="everysec")
    try:
        with serve_process(tmp_path, asked(), "--store", redis.url, "--workers", "2") as process:
            accepted = contributed(process, 40)
            until(lambda: process.accepted() == accepted)
            children = subprocess.run(
                ["pgrep", "-P", str(process.process.pid)], capture_output=True, text=True, check=True
            ).stdout.split()
            workers = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
            assert len(workers) == 2
            import os

            os.kill(int(workers[0]), signal.SIGKILL)
            accepted += contributed(process, 20, seed=100)
            until(lambda: process.accepted() == accepted)
            status, said = process.stop()
            assert (status, said) == (0, "")
    finally:
        redis.kill()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["nothing.json"], "there is no such file"),
        (["spec.json", "--workers", "2"], "several processes need a pool that they share"),
        (["spec.json", "--workers", "0"], "workers"),
        (["spec.json", "--store", "http://here", "--admission-key", "key"], "give memory, redis://"),
        (["spec.json", "--store", "redis://here"], "signs admission tokens, or say --open-admission"),
        (["spec.json", "--accepted-a-day", "0"], "daily"),
        (["spec.json", "--store", "redis://here", "--folder", "x"], "a pool in Redis has none"),
        (["spec.json", "--host", "192.0.2.1"], "other machines come in through nginx"),
        (["spec.json", "--host", "learn.example.org"], "other machines come in through nginx"),
        (["spec.json", "--keep-every", "0"], "keep_every"),
        (["spec.json", "--port", "70000"], "port"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_use_is_said_in_a_line(incrowd: Command, options: list[str], told: str) -> None:
    got = incrowd("serve", *options)
    assert got.status in (1, 2)
    assert told in got.err
    assert got.err.count("\n") == 1


def test_the_configuration_of_nginx_is_written(incrowd: Command) -> None:
    got = incrowd("serve", "--nginx")
    assert got.status == 0
    assert got.out == (resources.files("incrowd.service") / "nginx.conf").read_text()


def test_a_port_that_is_taken_is_said(incrowd: Command) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        got = incrowd("serve", "spec.json", "--port", str(taken.getsockname()[1]))
    assert got.status == 2
    assert "give another one" in got.err
