"""The figure of docs/choosing-with-your-board.md: its numbers are those of Python."""

import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scipy.special import ndtr

from incrowd.audit.bounds import allowed
from incrowd.privacy.account.events import log_delta

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs/_static/board.js"
PAGE = ROOT / "docs/choosing-with-your-board.md"
EPSILONS, DELTAS = (0.05, 0.5, 1.0, 2.0, 8.0, 12.0), (1e-9, 1e-5, 1e-2)


def computed(expression: str) -> Any:
    """What the page's script says, by node."""
    node = shutil.which("node")
    if node is None:
        assert not os.environ.get("INCROWD_ALL_TESTS"), "node is not installed"
        pytest.skip("node is not installed: apt-get install nodejs")
    code = f"const board = require({json.dumps(str(SCRIPT))}); console.log(JSON.stringify({expression}))"
    done = subprocess.run([node, "-e", code], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_odds_and_noise_are_python_s() -> None:
    cases = [(epsilon, delta) for epsilon in EPSILONS for delta in DELTAS]
    right = computed(f"{[list(case) for case in cases]}.map(([e, d]) => board.rightAtMost(e, d))")
    assert right == pytest.approx([(1 + d * math.exp(-e)) / (1 + math.exp(-e)) for e, d in cases])
    mus = computed(f"{[list(case) for case in cases]}.map(([e, d]) => board.muOf(e, d))")
    for (epsilon, delta), mu in zip(cases, mus, strict=True):
        assert float(log_delta(mu, epsilon)) == pytest.approx(math.log(delta), abs=1e-5)
    missed = computed(f"{[list(case) for case in cases]}.map(([e, d]) => board.missedAtLeast(e, d, 0.01))")
    assert missed == pytest.approx([1 - allowed(0.01, epsilon=e, delta=d) for e, d in cases], abs=1e-12)


def test_what_is_believed_holds_but_for_a_chance_of_delta() -> None:
    for epsilon in EPSILONS[1:]:
        mu, believed = computed(f"[board.muOf({epsilon}, 1e-5), board.believedAtMost({epsilon}, 1e-5, 0.1)]")
        evidence = math.log(believed / (1 - believed)) - math.log(0.1 / 0.9)
        assert float(ndtr(mu / 2 - evidence / mu)) == pytest.approx(1e-5, rel=1e-3)  # that more is found out
        assert float(ndtr(mu / 2 - epsilon / mu)) > 2e-5  # the control: epsilon itself is exceeded more often


@pytest.mark.slow
def test_the_table_of_the_page_is_what_the_figure_says() -> None:
    rows = re.findall(r"^\| ([\d.]+) \| (\d+) \| ([\d.]+) % \| ([\d.]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 6
    for epsilon, right, believed, noise in rows:
        found = computed(
            f"[board.rightAtMost({epsilon}, 1e-5), board.believedAtMost({epsilon}, 1e-5, 0.1), "
            f"board.noiseToSignal({epsilon}, 1e-5, 1000, 1000)]"
        )
        assert math.ceil(100 * found[0]) == int(right)
        assert math.ceil(1000 * found[1] - 1e-9) / 10 == float(believed)
        assert float(f"{found[2]:.2g}") == float(noise)
