"""Figures for a monitor, in the text format of Prometheus."""

from collections.abc import Mapping
from typing import Literal


def metric(
    name: str, told: str, values: Mapping[str, float], *, label: str = "", kind: Literal["counter", "gauge"] = "gauge"
) -> str:
    """The lines of one metric: a value for each value of its label, or a single one under the key ""."""
    samples = [f"{name}{_labels(label, key)} {value}\n" for key, value in values.items()]
    return f"# HELP {name} {told}\n# TYPE {name} {kind}\n{''.join(samples)}"


def _labels(label: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{{label}="{escaped}"}}' if label else ""
