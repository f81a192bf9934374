"""What MkDocs does beyond its configuration, called by `hooks:` in mkdocs.yml.

The navigation is read from docs/README.md, the index that readers on GitHub see: a heading is a section, a link in a
list is a page. Files of the repository that the pages link to (recipes, model cards) become pages of the site under
`source/`, so that the site works without a connection. Only the standard library and MkDocs are imported.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
INDEX = "README.md"
SOURCE = "source"
"""The folder of the site in which files from outside of docs/ appear."""

# A fenced block first, so that what looks like a link inside of it is no link.
_FENCE_OR_LINK = re.compile(
    r"^(?P<fence>```|~~~).*?^(?P=fence)\s*$|(?<=\]\()(?![a-z]+:|#|/)(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))",
    re.DOTALL | re.MULTILINE,
)
_ITEM = re.compile(r"[-*] |[0-9]+\. ")
_NO_TEXT = re.compile(r"[-*] |[0-9]+\. |\s|#|<")
_LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".py": "python", ".json": "json", ".toml": "toml"}


def read_nav(index: str) -> list[Any]:
    """Return MkDocs' navigation from the text of the index. `##` opens a section and `###` a group inside it."""
    nav: list[Any] = [{"Overview": INDEX}]
    entries: list[Any] = nav
    section: list[Any] = nav
    for line in index.splitlines():
        if heading := re.match(r"(##|###) (.+)", line):
            parent = nav if heading[1] == "##" else section
            entries = []
            parent.append({heading[2].strip(): entries})
            if heading[1] == "##":
                section = entries
        elif re.match(r"\s*- ", line):
            for title, page in re.findall(r"\[([^\]]+)\]\(([^):#]+\.md)\)", line):
                entries.append({title.strip("`"): page})
    return nav


def pages_of(nav: list[Any]) -> Iterator[str]:
    """Yield the pages of a navigation in their order."""
    for entry in nav:
        for value in entry.values():
            yield from pages_of(value) if isinstance(value, list) else [value]


def linked_files(markdown: str, folder: Path) -> Iterator[Path]:
    """Yield the existing files and folders outside of docs/ that a page in `folder` links to."""
    for match in _FENCE_OR_LINK.finditer(markdown):
        path = Path(os.path.normpath(folder / (match["target"] or "")))
        if match["target"] and path.exists() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS):
            yield path


def all_linked_files() -> list[Path]:
    """Return every file outside of docs/ that a page links to, directly or by way of another linked Markdown file."""
    found: dict[Path, None] = {}
    waiting = [(page.read_text(encoding="utf-8"), page.parent) for page in sorted(DOCS.rglob("*.md"))]
    while waiting:
        for path in linked_files(*waiting.pop()):
            if path not in found:
                found[path] = None
                waiting.append((_page_text(path), path if path.is_dir() else path.parent))
    return sorted(found)


def source_uri(path: Path) -> str:
    """Return the address in the site of the page that shows a file of the repository."""
    place = path.relative_to(ROOT).as_posix()
    return f"{SOURCE}/{place}" if path.suffix == ".md" else f"{SOURCE}/{place}.md"


def rewritten(markdown: str, uri: str) -> str:
    """Return the page with its links to files outside of docs/ leading to their pages in the site."""
    shown = ROOT / uri.removeprefix(f"{SOURCE}/") if uri.startswith(f"{SOURCE}/") else DOCS / uri
    if not shown.exists():  # the page of a file that is not Markdown
        shown = shown.with_suffix("")
    folder = shown if shown.is_dir() else shown.parent

    def leading(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(folder / (match["target"] or "")))
        if not match["target"] or not path.exists() or not path.is_relative_to(ROOT):
            return match[0]
        target = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else source_uri(path)
        return relpath(target, normpath(f"{uri}/..")) + (match["anchor"] or "")

    return _FENCE_OR_LINK.sub(leading, markdown)


def with_lists_apart(markdown: str) -> str:
    """Return the page with an empty line before each list that follows a line of text. GitHub needs none there, but
    MkDocs' parser would take the list for a part of the paragraph."""
    lines: list[str] = []
    fence = ""
    for line in markdown.splitlines():
        before = lines[-1] if lines else ""
        if not fence and _ITEM.match(line) and before.strip() and not _NO_TEXT.match(before):
            lines.append("")
        if mark := re.match(r"```|~~~", line):
            fence = "" if fence == mark[0] else fence or mark[0]
        lines.append(line)
    return "\n".join(lines) + "\n"


def _page_text(path: Path) -> str:
    place = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        names = sorted(one for one in path.iterdir() if one.is_file())
        return f"# {place}\n\n" + "".join(f"- [{one.name}]({one.name})\n" for one in names)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(r"\A---\n.*?^---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    return f"# {path.name}\n\n`{place}`\n\n~~~{_LANGUAGES.get(path.suffix, 'text')}\n{text}~~~\n"


def on_config(config: Any) -> Any:
    config["nav"] = read_nav((DOCS / INDEX).read_text(encoding="utf-8"))
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File, InclusionLevel

    for path in all_linked_files():
        page = File.generated(config, source_uri(path), content=_page_text(path), inclusion=InclusionLevel.NOT_IN_NAV)
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri == INDEX:
        page.meta["hide"] = ["navigation"]  # the tabs and the page itself are the navigation
    return with_lists_apart(rewritten(markdown, page.file.src_uri))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Wrap the lines of prompts and responses on the pages of tasks; elsewhere a block of text may be a formula."""
    if page.file.src_uri.startswith("tasks/"):
        return html.replace('class="language-text highlight"', 'class="language-text highlight wrapped"')
    return html
