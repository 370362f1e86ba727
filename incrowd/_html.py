"""Tables for notebooks."""

import html
from collections.abc import Mapping


def html_table(facts: Mapping[str, object]) -> str:
    """A row for each fact. Guarantee: whatever a name or a value holds is shown as text."""
    cells = ((html.escape(name), html.escape(str(value))) for name, value in facts.items())
    return f"<table>{''.join(f'<tr><th>{name}</th><td>{value}</td></tr>' for name, value in cells)}</table>"
