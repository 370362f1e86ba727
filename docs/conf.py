"""How Sphinx builds these pages."""

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
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
maximum_signature_line_length = 100

# Every reference to our own public names must resolve. Those to other projects cannot, without the network.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!incrowd\.).*"),
    (r"py:.*", r".*\._.*"),
    # Type variables have no page.
    (r"py:.*", r"incrowd\.(learning\.vector\.Loop|learning\.workers\.Task|runs\.processes\.Task|runs\.settings\.C)"),
]
