"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Option(metavar="DIR", help="The folder that holds MNIST, or a set in its format.")]
Seeds = Annotated[int, typer.Option(help="How often to repeat each, all drawn anew.")]
Cache = Annotated[Path, typer.Option(metavar="DIR", help="Where features are kept.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where the pictures go.")]

DRAWN = Path("out/figures")
FEATURES = Path("out/features")
