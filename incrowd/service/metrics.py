"""The figures for a monitor, as Prometheus reads them."""

import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from incrowd._prometheus import metric


def exposition(status: Mapping[str, Any], *, draws: int, refused: Mapping[str, int]) -> str:
    """The text. What is counted by the pool is all servers'; draws, refusals and memory are this process's own."""
    spread = status["spread"]
    return "".join(
        [
            metric("incrowd_accepted_total", "Answers in the pool.", {"": status["accepted"]}, kind="counter"),
            metric("incrowd_repeated_total", "Answers that came again.", {"": status["repeated"]}, kind="counter"),
            metric(
                "incrowd_turned_away_total",
                "Answers that did not enter, by reason.",
                dict(sorted(status["turned_away"].items())),
                label="reason",
                kind="counter",
            ),
            metric("incrowd_draws_total", "Instances that this process handed out.", {"": draws}, kind="counter"),
            metric(
                "incrowd_refused_requests_total",
                "Requests that this process refused, by reason.",
                dict(sorted(refused.items())),
                label="reason",
                kind="counter",
            ),
            metric("incrowd_updates_per_second", "Accepted answers a second.", {"": status["updates_per_second"]}),
            metric(
                "incrowd_spread",
                "How far instances are apart, measured and by theory.",
                {kind: spread[kind] for kind in ("measured", "theory")},
                label="kind",
            ),
            metric("incrowd_paused", "Whether answers wait.", {"": int(status["paused"])}),
            metric("incrowd_store_up", "Whether the store is well.", {"": int(status["trouble"] is None)}),
            metric("process_resident_memory_bytes", "Memory of this process.", {"": resident()}),
        ]
    )


def resident() -> int:
    """The memory of this process in bytes; where the system does not tell, the most that it ever was."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
