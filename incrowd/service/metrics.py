"""The figures for a monitor, as Prometheus reads them."""

import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def exposition(status: Mapping[str, Any], *, draws: int, refused: Mapping[str, int]) -> str:
    """The text. What is counted by the pool is all servers'; draws, refusals and memory are this process's own."""
    spread = status["spread"]
    lines = [
        *_metric("incrowd_accepted_total", "counter", "Answers in the pool.", {"": status["accepted"]}),
        *_metric("incrowd_repeated_total", "counter", "Answers that came again.", {"": status["repeated"]}),
        *_metric(
            "incrowd_turned_away_total",
            "counter",
            "Answers that did not enter, by reason.",
            {f'reason="{name}"': count for name, count in sorted(status["turned_away"].items())},
        ),
        *_metric("incrowd_draws_total", "counter", "Instances that this process handed out.", {"": draws}),
        *_metric(
            "incrowd_refused_requests_total",
            "counter",
            "Requests that this process refused, by reason.",
            {f'reason="{name}"': count for name, count in sorted(refused.items())},
        ),
        *_metric(
            "incrowd_updates_per_second", "gauge", "Accepted answers a second.", {"": status["updates_per_second"]}
        ),
        *_metric(
            "incrowd_spread",
            "gauge",
            "How far instances are apart, measured and by theory.",
            {f'kind="{kind}"': spread[kind] for kind in ("measured", "theory")},
        ),
        *_metric("incrowd_paused", "gauge", "Whether answers wait.", {"": int(status["paused"])}),
        *_metric("incrowd_store_up", "gauge", "Whether the store is well.", {"": int(status["trouble"] is None)}),
        *_metric("process_resident_memory_bytes", "gauge", "Memory of this process.", {"": resident()}),
    ]
    return "\n".join(lines) + "\n"


def resident() -> int:
    """The memory of this process in bytes; where the system does not tell, the most that it ever was."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def _metric(name: str, kind: str, told: str, values: Mapping[str, float]) -> list[str]:
    samples = [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in values.items()]
    return [f"# HELP {name} {told}", f"# TYPE {name} {kind}", *samples]
