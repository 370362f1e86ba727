"""How Sphinx builds these pages."""

import importlib
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

from incrowd import __version__

project = "incrowd"
author = "the incrowd authors"
project_copyright = author
release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

html_theme = "furo"
html_static_path = ["_static"]
html_title = f"incrowd {release}"

default_role = "literal"  # our docstrings write `code` with single backticks
autodoc_default_options = {"members": True, "exclude-members": "model_post_init,model_config"}
autodoc_member_order = "bysource"
maximum_signature_line_length = 100

# Every reference to our own public names must resolve. Those to other projects cannot, without the network, and names
# that are not public have no page.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!incrowd\.).*")]

PACKAGES = (
    "incrowd",
    "incrowd.data",
    "incrowd.learning",
    "incrowd.learning.features",
    "incrowd.algorithms",
    "incrowd.types",
    "incrowd.testing",
    *(f"incrowd.privacy.{part}" for part in ("plan", "mechanism", "account", "ledger")),
    "incrowd.drawdiscard",
    "incrowd.cli",
    "incrowd.runs.sweep",
)


def public_names() -> dict[str, str]:
    """Where each public class and function is defined, and under which public name the page has it."""
    found: dict[str, str] = {}
    for package in map(importlib.import_module, PACKAGES):
        for name in package.__all__:
            value = getattr(package, name)
            if hasattr(value, "__qualname__"):
                found.setdefault(f"{value.__module__}.{value.__qualname__}", f"{package.__name__}.{name}")
    return found


NAMES = public_names()


def resolve(app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Element) -> nodes.Node | None:
    """Leads from where a name is defined to where it is public. A name of ours that is not public stays a text."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("incrowd."):
        return None
    if target not in NAMES:
        return content
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", NAMES[target], node, content) or content


def state_settings(_app: Sphinx, _what: str, _name: str, value: Any, *_: Any) -> tuple[str, str] | None:
    """The signature of a section of settings: what is to be stated, and what else has which default."""
    if not hasattr(value, "model_fields"):
        return None
    fields = value.model_fields.items()
    return f"(*, {', '.join(key if one.is_required() else f'{key}={one.default!r}' for key, one in fields)})", ""


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", state_settings)
    app.connect("missing-reference", resolve)
