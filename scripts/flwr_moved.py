"""What `incrowd.flower` uses of flwr, and what of it the installed flwr, or the newest on the index, lacks.

    python -m scripts.flwr_moved             # the installed one; exit status 1 if something is gone
    python -m scripts.flwr_moved --newest    # the newest, in an environment of its own; exit status 0

It reads our sources, and imports flwr alone.
"""

import ast
import importlib
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOM = Path(__file__).parents[1] / "incrowd" / "flower"
FLEET, RUNTIME = "supernode.fleet_http_client.FleetHttpClient", "supercore.runtime.RuntimeHttpClient"
CLIENTS = (FLEET, RUNTIME, "supercore.control.ControlHttpClient")
HOLDERS = ("_client", "_control", "_of_run", "_runtime", "_tasks")  # of them, in `incrowd.flower.fleet`


def found(name: str) -> Any:
    """What a dotted name stands for; None if it is gone."""
    module, _, last = name.rpartition(".")
    with suppress(ImportError):
        owner = importlib.import_module(module)
        return getattr(owner, last) if hasattr(owner, last) else importlib.import_module(name)
    return None


def moved(source: str) -> Iterator[str]:
    """What is gone of flwr, for a source of ours."""
    nodes, protocol = list(ast.walk(ast.parse(source))), dict[str, str]()
    clients = [found(f"flwr.{client}") for client in CLIENTS]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("flwr."):
            names = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            protocol |= {name: path for name, path in names.items() if name.endswith("_pb2")}
            yield from (f"{path}: gone" for path in names.values() if found(path) is None)
    for node in nodes:
        called, words = (node.func, node.keywords) if isinstance(node, ast.Call) else (None, [])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
            parser = found("flwr.superlink.cli.flower_superlink._parse_args_run_superlink")
            if parser is None or node.value not in parser().format_help():
                yield f"flower-superlink {node.value}: the option is gone"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            call = node.attr if node.value.attr in HOLDERS and node.attr[0].isupper() else ""
            if call and not any(hasattr(client, call) for client in clients):
                yield f"{call}: the call is gone"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in protocol and found(path := f"{protocol[node.value.id]}.{node.attr}") is None:
                yield f"{path}: gone"
        elif isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
            kind = found(f"{protocol.get(called.value.id, 'flwr')}.{called.attr}")
            fields = getattr(getattr(kind, "DESCRIPTOR", None), "fields_by_name", {})
            lost = [str(word.arg) for word in words if fields and word.arg not in fields]
            yield from (f"{called.attr}.{name}: the field is gone" for name in lost)


def main() -> int:
    """Print what is gone."""
    if "--newest" in sys.argv:
        with tempfile.TemporaryDirectory() as place:
            venv.create(place, with_pip=True)
            python = Path(place) / "bin" / "python"
            subprocess.run([python, "-m", "pip", "install", "-q", "flwr[simulation]"], check=False)
            subprocess.run([python, __file__], check=False)
        return 0
    gone = sorted({f"{path.name}: {line}" for path in ROOM.glob("*.py") for line in moved(path.read_text("utf-8"))})
    sys.stdout.write("\n".join([f"flwr {version('flwr')}: {len(gone)} names are gone", *gone]) + "\n")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())
