"""What Flower's actors do on a Ray of two workers, as a JSON file, by a process of its own: Ray leaves too much behind.

A file, because Ray prints to standard output whenever it likes: that a worker died, seconds after it did.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from incrowd.errors import DataError
from incrowd.flower.actors import ActorLine
from incrowd.flower.rounds import Patience, ask, frame_in, record_of


def answer(message: Message, _: Context) -> Message:
    """Who a node is, and what it was asked."""
    asked = frame_in(message.content) or b""
    if asked == b"fail":
        raise ValueError("a node's own words")
    if asked == b"die":
        os._exit(1)
    words = f"{message.metadata.dst_node_id} {os.getpid()} ".encode() + asked
    return Message(record_of(words), reply_to=message)


def answers(line: ActorLine, question: bytes) -> dict[int, list[str]]:
    """What all nodes say, as words; between two looks are 50 seconds, unless one is woken."""
    patience = Patience(timeout=100, poll=50, all_needed=True, clock=line)
    frames = dict.fromkeys(line.nodes, question)
    found = ask(line, frames, longest=100, read=lambda _, frame: frame.decode(), patience=patience)
    return {node: words.split() for node, words in found.items()}


def said(run: Callable[[], object]) -> str:
    """The words of the error that this ends with."""
    try:
        run()
    except DataError as error:
        return str(error)
    return ""


def main() -> dict[str, object]:
    """Everything that is looked at."""
    app, found = ClientApp(), dict[str, object]()
    app.train("incrowd")(answer)
    with ActorLine(app, nodes=3) as line:
        found["first"] = answers(line, b"hello")
        begin = time.monotonic()
        found["again"] = answers(line, b"you")
        found["seconds"] = time.monotonic() - begin
        owners = line.push([1], b"x" * 200, 100.0)
        line.wait(100.0)
        found["too long"] = len(list(line.pull(list(owners), 100)))
        workers = {int(words[1]) for words in answers(line, b"who").values()}
    end = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < end:
        time.sleep(0.1)
    found["left"] = [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    for question in (b"fail", b"die"):
        with ActorLine(app, nodes=2) as line:
            found[question.decode()] = said(lambda: answers(line, question))  # noqa: B023 - it is called at once
    found["no room"] = said(ActorLine(app, nodes=2, gpus=4.0).__enter__)
    return found


if __name__ == "__main__":
    path = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": path})
    Path(sys.argv[1]).write_text(json.dumps(main()))
    ray.shutdown()
