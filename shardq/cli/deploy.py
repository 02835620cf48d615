"""deploy: the command that prints the deployment files, or writes them into a folder. They are those of
``cluster/deploy`` of a checkout, and in the package where that is installed.
"""

from __future__ import annotations

import re
import shutil
from fnmatch import fnmatch
from pathlib import Path

import click

import shardq
from shardq.cli.options import Given, command, shared
from shardq.cli.output import complain, say, tell
from shardq.errors import ShardqError

REQUIREMENTS = "requirements.txt"

KINDS = {
    "compose": ("README.md", "Dockerfile", REQUIREMENTS, "compose.yaml", "app"),
    "kubernetes": ("README.md", "Dockerfile", REQUIREMENTS, "kubernetes"),
    "systemd": ("README.md", REQUIREMENTS, "systemd"),
}
"""Kind → its files and folders."""

PLACES = (Path(__file__).parent / "deployment", Path(__file__).parents[2] / "cluster" / "deploy")
"""Where the files are: of an installed package, of a checkout."""


@command("Print the files of a deployment, to copy.")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.option("--print", "prints", is_flag=True, help="Print every file, each after a line with its name.")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="Write the files into this folder.")
@click.option(
    "--wheel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Install shardq from this wheel, which is copied into the folder. Default: this version, from your index.",
)
@shared
def deploy(given: Given, kind: str, prints: bool, folder: Path | None, wheel: Path | None) -> None:
    """Print, or write, the files that run dispatchers, workers, and the API with the dashboard, by docker compose, on
    Kubernetes, or as systemd units. Put your own names in: the server, the engine, your module; and what that
    needs into requirements.txt.

    If one of the files exists already, nothing is written.

    example:
      shardq deploy compose --print
      shardq deploy kubernetes --to deploy
      shardq deploy compose --to deploy --wheel shardq-0.1.0-py3-none-any.whl
    """
    if prints == (folder is not None):
        raise click.UsageError("give one of --print and --to FOLDER")
    if wheel is not None and (folder is None or not fnmatch(wheel.name, "shardq-*.whl")):
        raise click.UsageError("--wheel FILE goes with --to FOLDER, and FILE is a wheel of shardq: shardq-….whl")
    files = dict(_files(kind))
    files[REQUIREMENTS] = _with_version(files[REQUIREMENTS], wheel)
    if folder is None:
        for name, text in files.items():
            if given.json:
                tell({"file": name, "text": text})
            else:
                say(f"# ---- {name}\n{text}")
        return
    names = [*files, wheel.name] if wheel is not None else files
    taken = [name for name in names if (folder / name).exists()]
    if taken:
        raise ShardqError(f"nothing is written: {folder} has {', '.join(taken)} already")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        say(str(path))
    if wheel is not None:
        say(str(shutil.copy(wheel, folder)))
    elif "+" in shardq.__version__:
        complain(
            f"{REQUIREMENTS} names shardq {shardq.__version__}, a build of a checkout, which no package index has: "
            "give its wheel with --wheel, or put a release there"
        )


def _with_version(requirements: str, wheel: Path | None) -> str:
    """The requirements with this version of shardq, or with a wheel in the same folder."""
    line = r"./{wheel}\1" if wheel is not None else r"shardq\1=={version}"
    line = line.format(wheel=wheel and wheel.name, version=shardq.__version__)
    return re.sub(r"^shardq(\[.*\])$", line, requirements, flags=re.MULTILINE)


def _files(kind: str) -> list[tuple[str, str]]:
    """The names of the files of a kind, and their text."""
    root = next((place for place in PLACES if place.is_dir()), None)
    if root is None:
        raise ShardqError("the deployment files are not in this installation: they are in cluster/deploy of the source")
    found = []
    for name in KINDS[kind]:
        paths = sorted((root / name).rglob("*")) if (root / name).is_dir() else [root / name]
        found += [path for path in paths if path.is_file() and "__pycache__" not in path.parts]
    return [(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")) for path in found]
