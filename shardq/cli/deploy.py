"""deploy: the command that prints the deployment files, or writes them into a folder. They are those of
``cluster/deploy`` of a checkout, and in the package where that is installed.
"""

from __future__ import annotations

from pathlib import Path

import click

from shardq.cli.options import Given, command, shared
from shardq.cli.output import say, tell
from shardq.errors import ShardqError

KINDS = {
    "compose": ("README.md", "Dockerfile", "compose.yaml", "app"),
    "kubernetes": ("README.md", "Dockerfile", "kubernetes"),
    "systemd": ("README.md", "systemd"),
}
"""Kind → its files and folders."""

PLACES = (Path(__file__).parent / "deployment", Path(__file__).parents[2] / "cluster" / "deploy")
"""Where the files are: of an installed package, of a checkout."""


@command("Print the files of a deployment, to copy.")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.option("--print", "prints", is_flag=True, help="Print every file, each after a line with its name.")
@click.option("--to", "folder", type=click.Path(path_type=Path), help="Write the files into this folder.")
@shared
def deploy(given: Given, kind: str, prints: bool, folder: Path | None) -> None:
    """Print, or write, the files that run dispatchers, workers and the dashboard with docker compose, on
    Kubernetes, or as systemd units. Put your own names in: the server, the engine, your module.

    If one of the files exists already, nothing is written.

    example:
      shardq deploy compose --print
      shardq deploy kubernetes --to deploy
    """
    if prints == (folder is not None):
        raise click.UsageError("give one of --print and --to FOLDER")
    files = dict(_files(kind))
    if folder is None:
        for name, text in files.items():
            if given.json:
                tell({"file": name, "text": text})
            else:
                say(f"# ---- {name}\n{text}")
        return
    taken = [name for name in files if (folder / name).exists()]
    if taken:
        raise ShardqError(f"nothing is written: {folder} has {', '.join(taken)} already")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        say(str(path))


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
