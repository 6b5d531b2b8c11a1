"""Turn the pages, as people read them in the repository, into pages of the site.

A page that lists others becomes a part of the menu. A link that leads out of `docs/` becomes plain text, because the
site has no source code.
"""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

LISTS = ("index", "performance/README")
"""The pages that list others: their links are the menu, in that order, under their headings."""
FOLDERS = {"adr/README": "0*"}
"""Pages with all pages of their folder below them in the menu."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Change a page's text before it is parsed."""
    folder = Path(app.srcdir, name).parent
    text = _LINK.sub(lambda link: _within(link, folder, Path(app.srcdir)), source[0])
    if name in LISTS:
        text += _menu(name, text)
    if name in FOLDERS:
        text += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n\n{FOLDERS[name]}\n```\n"
    source[0] = text


def _within(link: re.Match[str], folder: Path, root: Path) -> str:
    text, target, _ = link.groups()
    if ":" in target or Path(os.path.normpath(folder / target)).is_relative_to(root):
        return link[0]
    if not (folder / target).exists():
        raise ExtensionError(f"{folder}: {target} does not exist")
    return text


def _menu(name: str, text: str) -> str:
    """Return tables of contents that show in the menu only: one for each heading, with the pages it lists."""
    seen: set[str] = set()
    parts: list[str] = []
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        heading = part.partition("\n")[0] if parts or not part.startswith("# ") else ""
        pages = [target for _, target, anchor in _LINK.findall(part) if target.endswith(".md") and not anchor]
        new = [page for page in dict.fromkeys(pages) if page not in seen and not page.startswith("../")]
        seen.update(new)
        if new:
            caption = f":caption: {heading}\n" if heading and name == "index" else ""
            listed = "\n".join(page.removesuffix(".md") for page in new)
            parts.append(f"\n\n```{{toctree}}\n:hidden:\n{caption}\n{listed}\n```")
    return "".join(parts) + "\n"
