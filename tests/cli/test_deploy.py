"""deploy prints the deployment files, and writes them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardq
from shardq.cli.deploy import KINDS
from tests.cli.shell import Shell
from tests.support.reader import built

ROOT = Path(__file__).parents[2] / "cluster" / "deploy"


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_of_a_kind(tmp_path: Path, kind: str) -> None:
    shell = Shell(tmp_path, {})
    printed = shell.run("deploy", kind, "--print")
    written = shell.run("deploy", kind, "--to", str(tmp_path / "mine"))
    assert (printed.code, written.code) == (0, 0)
    files = [Path(line) for line in written.out.splitlines()]
    assert files
    for path in files:
        source = (ROOT / path.relative_to(tmp_path / "mine")).read_text()
        if path.name == "requirements.txt":
            source = source.replace("serve]", f"serve]=={shardq.__version__}")
        assert path.read_text() == source
        assert all(line in printed.out for line in source.splitlines())
    assert ("which no package index has" in written.err) == ("+" in shardq.__version__)
    again = shell.run("deploy", kind, "--to", str(tmp_path / "mine"))
    assert (again.code, "nothing is written" in again.err) == (1, True)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.timeout(600)  # an environment is installed
def test_the_image_is_made_of_what_is_written_alone(tmp_path: Path) -> None:
    """Docker can't run here, so its steps do: they need no checkout, and bring what the application needs."""
    shell = Shell(tmp_path, {})
    folder, wheel = tmp_path / "mine", built(tmp_path)
    written = shell.run("deploy", "compose", "--to", str(folder), "--wheel", str(wheel))
    assert (written.code, written.err) == (0, "")
    assert str(folder / wheel.name) in written.lines
    with (folder / "requirements.txt").open("a") as file:
        file.write("idna>=3\n")
    text = (folder / "Dockerfile").read_text()
    (copied,) = re.findall(r"^COPY (.+) \./$", text, re.MULTILINE)
    (wheels,) = re.findall(r"^RUN (pip wheel .+)$", text, re.MULTILINE)
    (install,) = re.findall(r"(pip install .+) \\$", text, re.MULTILINE)
    (tmp_path / "src").mkdir()
    subprocess.run(["bash", "-euc", f"cp {copied} ../src"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "image")], check=True)
    python = tmp_path / "image/bin/python"
    for step, pip in ((wheels, "pip"), (install, f"pip --python {python}")):
        step = step.replace("/wheels", str(tmp_path / "wheels")).replace("pip ", f"{sys.executable} -m {pip} ", 1)
        done = subprocess.run(["bash", "-euc", step], cwd=tmp_path / "src", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    clean = {"SHARDQ_NAME": "shop", "PATH": "/usr/bin:/bin"}
    program = "import idna, cronsim, starlette, prometheus_client, shardq, shopapp; print(shardq.__file__)"
    done = subprocess.run(
        [python, "-c", program], cwd=folder / "app", env=clean, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith(str(tmp_path / "image")), done.stderr
    told = subprocess.run(
        [python.parent / "shardq", "--version"], env=clean, capture_output=True, text=True, check=True
    )
    assert told.stdout.split()[-1] in wheel.name.replace("_", "+")


def test_a_wheel_is_one_of_shardq(tmp_path: Path) -> None:
    (tmp_path / "other-1.0-py3-none-any.whl").touch()
    done = Shell(tmp_path, {}).run(
        "deploy", "systemd", "--to", "mine", "--wheel", str(tmp_path / "other-1.0-py3-none-any.whl")
    )
    assert (done.code, "is a wheel of shardq" in done.err) == (2, True)


def test_one_way_is_chosen(tmp_path: Path) -> None:
    for words in ((), ("--print", "--to", "mine")):
        done = Shell(tmp_path, {}).run("deploy", "systemd", *words)
        assert (done.code, "one of --print and --to" in done.err) == (2, True)
