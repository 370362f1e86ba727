"""Flower's actors on Ray as the way to nodes: each holds a ClientApp, and is asked without a detour.

Flower's own loop around them looks for new messages every tenth of a second and hands each to whichever actor is idle.
Here a message goes to its actor at once, a node's always to the same one, which therefore has its examples at hand; and
whoever waits for answers is woken by them.
"""

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from incrowd.errors import DataError
from incrowd.flower.rounds import MESSAGE_TYPE, frame_in, record_of

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp


class ActorLine:
    """So many nodes, dealt to as many actors as Ray has room for, for use in a `with` statement: see `rounds.Line`.

    It is a clock as well (`rounds.Clock`), whose waiting ends with the next answer.

    Guarantee: the actors end with the `with` block, whatever they are at.

    Edge cases: a node that fails is a `DataError`, and so is one whose actor was killed; room for no actor is one.
    """

    def __init__(self, app: "ClientApp", *, nodes: int, gpus: float = 0.0) -> None:
        self.nodes: Sequence[int] = range(1, nodes + 1)
        self._app = app
        self._gpus = gpus
        self._actors: list[Any] = []
        self._asked: dict[str, Any] = {}

    def __enter__(self) -> Self:
        from flwr.simulation.ray_transport.ray_actor import ClientAppActor, pool_size_from_resources

        resources: dict[str, int | float] = {"num_cpus": 1, "num_gpus": self._gpus}
        try:
            room = pool_size_from_resources(resources)
        except ValueError as error:
            raise DataError(f"Ray has no room for a worker of one processor and {self._gpus:g} accelerators") from error
        kind: Any = ClientAppActor  # which Ray has made something else of than its types say
        self._actors += [kind.options(**resources).remote() for _ in range(min(room, len(self.nodes)))]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """See `Line.push`."""
        from flwr.app import Context, Metadata, RecordDict
        from flwr.app.message import make_message

        owners, app, record = dict[str, int](), self._app, record_of(content)
        for node in nodes:
            head = Metadata(
                run_id=0,
                message_id="",
                src_node_id=0,
                dst_node_id=node,
                reply_to_message_id="",
                group_id="",
                created_at=time.time(),
                ttl=seconds,
                message_type=MESSAGE_TYPE,
            )
            message = make_message(head, content=record)
            context = Context(run_id=0, node_id=node, node_config={}, state=RecordDict(), run_config={})
            actor = self._actors[self.nodes.index(node) % len(self._actors)]
            reference = actor.run.remote(lambda: app, message, str(node), context)
            self._asked[reference.hex()] = reference
            owners[reference.hex()] = node
        return owners

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """See `Line.pull`."""
        import ray

        waiting = [self._asked[number] for number in asked if number in self._asked]
        for reference in ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if waiting else ():
            del self._asked[reference.hex()]
            try:
                _, answer, _ = ray.get(reference)
            except ray.exceptions.RayError as error:
                raise DataError(f"a node failed: {error}") from error
            frame = frame_in(answer.content)
            if frame is not None and len(frame) <= longest:
                yield reference.hex(), frame

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """See `Clock.wait`."""
        import ray

        if self._asked:
            ray.wait(list(self._asked.values()), num_returns=1, timeout=seconds)
        else:
            time.sleep(seconds)
