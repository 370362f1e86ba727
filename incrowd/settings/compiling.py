"""Whether torch may compile what a client computes."""

from typing import Literal

Compile = Literal["auto", "never", "always"]
