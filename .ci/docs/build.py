"""Builds the site of the documentation, .site/, from the pages beside the code and from the docstrings: `make docs`.

shardq/guide/README.md lists the pages in the order of reading, and that list is the site's navigation. A page keeps its
place, and so its links to other pages are what they are on GitHub. A link to a file that is no page leads to the
repository. The reference has a page for each name of `shardq.__all__`, and one for each other module with an `__all__`.

mkdocs builds what this has collected in a folder of its own. Its warnings are errors. In the end every link of the site
is followed, also those that mkdocs has made itself. Nothing may be loaded from another host, and no public name may be
missing in the reference.
"""

from __future__ import annotations

import ast
import json
import os
import posixpath
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

from following import faults
from texts import CONTENTS, COPIED, ROOT, breakable, contents, links, place, rewritten, target, titled

HERE = Path(__file__).parent
SITE = ROOT / ".site"
INIT = ROOT / "shardq/__init__.py"

Nav = list[dict[str, Any]]
"""As mkdocs has it: titles, each with its page, or with a list of the same kind."""


# ---- the pages


def ranked(boost: float) -> str:
    """The head of a page, by which the search ranks it higher than others."""
    return f"---\nsearch: {{boost: {boost:g}}}\n---\n\n"


def collect(into: Path) -> Nav:
    """Writes the pages and what they show. Returns the navigation."""
    text = (ROOT / CONTENTS).read_text(encoding="utf-8")
    sections = contents(text)
    pages = {CONTENTS, *(page for section in sections.values() for page in section)}
    for page in pages:
        source = (ROOT / page).read_text(encoding="utf-8")
        path = into / place(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ranked(2) + rewritten(page, source, pages), encoding="utf-8")
        for link in links(source):
            copy(target(page, link), into)
    nav: Nav = []
    for head, section in sections.items():
        entries: Nav = [{titled(title): place(page)} for page, title in section.items()]
        if not nav:
            entries.insert(1, {"All pages": place(CONTENTS)})
        nav.append({head: entries})
    return nav


def copy(file: str, into: Path) -> None:
    """Copies a picture, or an .html with the pictures beside it."""
    suffix = posixpath.splitext(file)[1]
    if suffix == ".html":
        shutil.copytree((ROOT / file).parent, (into / file).parent, dirs_exist_ok=True, ignore=_others)
    elif suffix in COPIED:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, into / file)


def _others(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if posixpath.splitext(name)[1] not in COPIED]


# ---- the reference


def exported(module: Path) -> dict[str, list[str]]:
    """Heading → names, of the ``__all__`` in a file; a comment in the list heads the names below it. A file without
    such a list has nothing.
    """
    groups: dict[str, list[str]] = {}
    head, inside = "", False
    with tokenize.open(module) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type == tokenize.NAME and token.string == "__all__" and token.start[1] == 0:
                inside = True
            elif inside and token.type == tokenize.COMMENT:
                head = token.string.lstrip("# ")
            elif inside and token.type == tokenize.STRING:
                name = str(ast.literal_eval(token.string))
                if not name.startswith("_"):
                    groups.setdefault(head, []).append(name)
            elif token.type == tokenize.NEWLINE:
                inside = False
    return groups


def errors() -> list[str]:
    """The classes of ``shardq.errors``."""
    tree = ast.parse((ROOT / "shardq/errors.py").read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def own() -> dict[str, list[str]]:
    """Heading → names, of ``shardq`` itself. Its errors are on the page of ``shardq.errors``."""
    elsewhere = set(errors())
    found = {head: [name for name in names if name not in elsewhere] for head, names in exported(INIT).items()}
    return {head: names for head, names in found.items() if names}


def modules() -> dict[str, tuple[Path, list[str]]]:
    """The other modules that programs import from, each with its file, and the names that ``shardq`` does not have.
    What of ``shardq.core`` is for programs, other modules have in their lists.
    """
    taken = {name for names in own().values() for name in names}
    found = {"shardq.errors": (ROOT / "shardq/errors.py", errors())}
    for file in sorted(ROOT.glob("shardq/**/*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names = [name for names in exported(file).values() for name in names if name not in taken]
        if names and module != "shardq" and not module.startswith("shardq.core."):
            found[module] = file, names
    return found


def reference(into: Path) -> Nav:
    """Writes the pages of the reference. Returns their navigation."""
    folder = into / "reference"
    folder.mkdir()
    says = sentences()
    index = ["# Reference", "", "::: shardq", "    options: {members: false, show_root_heading: false}"]
    nav: Nav = [{"Reference": "reference/index.md"}]
    for head, names in own().items():
        index += ["", f"## {titled(head)}", "", "| name | what it is |", "| --- | --- |"]
        index += [f"| [`{name}`]({name}.md) | {says(name)} |" for name in names]
        nav.append({titled(head): [{name: f"reference/{name}.md"} for name in names]})
        for name in names:
            boost = 0.5 if name.startswith("Async") else 1  # its twin for threads comes first
            text = f"::: shardq.{name}\n    options: {{heading_level: 1}}\n"
            (folder / f"{name}.md").write_text(ranked(boost) + text, encoding="utf-8")
    index += ["", "## Modules", "", "| module | what it is |", "| --- | --- |"]
    beside: Nav = []
    for module, (file, names) in modules().items():
        index.append(f"| [`{module}`]({module}.md) | {says(module.removeprefix('shardq.'))} |")
        beside.append({module.removeprefix("shardq."): f"reference/{module}.md"})
        (folder / f"{module}.md").write_text(of_module(module, file, names), encoding="utf-8")
    nav.append({"Modules": beside})
    (folder / "index.md").write_text("\n".join(index) + "\n", encoding="utf-8")
    return nav


def sentences() -> Callable[[str], str]:
    """What tells the first sentence of the docstring of a name of ``shardq``, for a table."""
    import griffe

    package = griffe.load("shardq", search_paths=[ROOT], extensions=griffe.load_extensions(str(HERE / "docstrings.py")))

    def says(name: str) -> str:
        docstring = package[name].docstring
        return docstring.value.partition("\n")[0].replace("|", "\\|") if docstring else ""

    return says


def of_module(module: str, file: Path, names: list[str]) -> str:
    """The page of a module. In a tree of errors it matters who stands under whom, and all have the same members."""
    guide = file.with_name("README.md")
    has_guide = file.name == "__init__.py" and guide.exists()
    options: dict[str, Any] = {"show_root_heading": False, "show_submodules": True, "members": names}
    if module == "shardq.errors":
        options |= {"show_bases": True, "inherited_members": False}
    return "\n".join(
        [
            f"# {module}",
            "",
            f"[The page about it](../{guide.relative_to(ROOT).as_posix()})" if has_guide else "",
            "",
            f"::: {module}",
            f"    options: {json.dumps(options)}",  # which is YAML
            "",
        ]
    )


# ---- the site


def absent(site: Path) -> list[str]:
    """The public names that the reference does not have."""
    pages = {f"shardq.{name}": name for names in own().values() for name in names}
    pages |= {f"{module}.{name}": module for module, (_, names) in modules().items() for name in names}
    return [
        f"{name} is not in the reference"
        for name, page in pages.items()
        if f'id="{name}"' not in (site / "reference" / page / "index.html").read_text(encoding="utf-8")
    ]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="shardq-docs-") as folder:
        pages = Path(folder, "pages")
        pages.mkdir()
        nav = collect(pages)
        nav.append({"Reference": reference(pages)})
        shutil.copyfile(HERE / "site.css", pages / "site.css")
        python = {"paths": [str(ROOT)], "options": {"extensions": [str(HERE / "docstrings.py")]}}
        config = {
            "INHERIT": str(HERE / "mkdocs.yml"),
            "docs_dir": str(pages),
            "site_dir": str(SITE),
            "nav": nav,
            "plugins": {"mkdocstrings": {"handlers": {"python": python}}},
        }
        written = Path(folder, "mkdocs.yml")
        written.write_text(json.dumps(config), encoding="utf-8")  # which is YAML
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(written)]
        # docstrings.py takes what is beside it. What the theme has to tell stands in pyproject.toml, at its version.
        environment = os.environ | {"PYTHONPATH": str(HERE), "NO_MKDOCS_2_WARNING": "1"}
        if subprocess.run(command, cwd=ROOT, env=environment).returncode:
            return 1
    for file in SITE.rglob("*.html"):
        file.write_text(breakable(file.read_text(encoding="utf-8")), encoding="utf-8")
    wrong = faults(SITE) + absent(SITE)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    print(f"{len(list(SITE.rglob('*.html')))} pages. To read them: python3 -m http.server --directory {SITE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
