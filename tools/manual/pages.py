"""Lay out the pages of the documentation site in a folder, for the generator: python tools/manual/pages.py FOLDER

The front page is the README, the references come from the code, and what a page links to in results/ or src/ is copied
beside the pages, so that every link leads somewhere without the repository. A link that leads nowhere is an error.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path

import reference_pages
import settings_page

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
_BLOCK = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_WORDS = re.compile(r"^(```\w+) \w+$", re.MULTILINE)
"""The fence of a block with a word for its test, which the generator takes for no fence."""
OF_THE_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
               "SECURITY.md": "security.md"}
"""Pages outside docs/, and their place in the site."""
FROM_THE_CODE = {"src/anybit/config/__init__.py": "reference/settings.md",
                 "src/anybit/federated/variants.py": "reference/python.md"}
"""Sources that pages link to for what they say of settings and names, and the page that is made from them."""


def generated() -> dict[str, str]:
    """Return {place: text} of the pages that are made from the code."""
    return {"reference/settings.md": settings_page.page(), "reference/python.md": reference_pages.names(),
            "reference/command.md": reference_pages.commands(), "reference/errors.md": reference_pages.failures()}


def place_of(path: str) -> str:
    """Return where a file of the repository lies in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return OF_THE_ROOT.get(path) or FROM_THE_CODE.get(path) or f"files/{path}"


def relinked(page: str, text: str, made: set[str]) -> tuple[str, set[str], list[str]]:
    """Return a page with its links as the site has them, the files outside docs/ that it needs, and its broken links."""
    wanted, broken = set[str](), list[str]()

    def moved(match: re.Match[str]) -> str:
        if ":" in match[1]:
            return match[1]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[1]))
        place = place_of(target)
        if place not in made and not (ROOT / target).is_file():
            broken.append(f"{page} links to {match[1]}, which is not there")
        if place.startswith("files/"):
            wanted.add(target)
        return posixpath.relpath(place, posixpath.dirname(place_of(page)) or ".")

    parts = _BLOCK.split(_WORDS.sub(r"\1", text))
    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts), wanted, broken


def lay_out(folder: Path) -> list[str]:
    """Write all pages and files into a new folder, and return the links that lead nowhere."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    pages, broken = generated(), list[str]()
    for place, text in pages.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    sources = [*OF_THE_ROOT, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
    for page in sources:
        text, wanted, lost = relinked(page, (ROOT / page).read_text(), {*pages})
        (folder / place_of(page)).write_text(text)
        broken += lost
        for file in wanted:
            if (ROOT / file).is_file():
                (folder / "files" / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, folder / "files" / file)
    return broken


if __name__ == "__main__":
    sys.exit("\n".join(lay_out(Path(sys.argv[1]))) or 0)
