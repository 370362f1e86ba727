"""A child for tests: it starts one of its own, writes the number of that to a file, and sleeps."""

import signal
import subprocess
import sys
import time
from pathlib import Path


def main(arguments: list[str]) -> None:
    if "deaf" in arguments:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(arguments[0]).write_text(str(grandchild.pid))
    time.sleep(60)
