"""Configure the documentation's site: `make docs` builds it with Sphinx. Any warning fails the build."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from surelane import __version__

project = "Surelane"
version = release = __version__
copyright = "the Surelane authors"  # noqa: A001 - Sphinx calls it so
language = "en"

extensions = ["myst_parser", "pages"]
exclude_patterns = ["site"]
highlight_language = "text"
show_warning_types = True

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
myst_links_external_new_tab = False

html_theme = "furo"
html_title = f"Surelane {__version__}"
html_copy_source = False
html_show_sphinx = False
