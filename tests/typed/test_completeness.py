"""What is public says its types, so that every type checker of a user sees the same ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import shardq

LEAST = 0.995
"""The rest has a base class of Django or Celery, which say no types."""

pytestmark = pytest.mark.slow


class Diagnostic(msgspec.Struct):
    message: str


class Symbol(msgspec.Struct, rename="camel"):
    name: str
    is_exported: bool
    is_type_known: bool
    diagnostics: list[Diagnostic]


class Completeness(msgspec.Struct, rename="camel"):
    completeness_score: float
    symbols: list[Symbol]


class Told(msgspec.Struct, rename="camel"):
    type_completeness: Completeness


def test_public_types_are_known(tmp_path: Path) -> None:
    # an editable install has some files under its name in site-packages, which would be taken for the package
    (tmp_path / "shardq").symlink_to(Path(shardq.__file__).parent)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--verifytypes", "shardq", "--ignoreexternal", "--outputjson"],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=False,
        timeout=300,
    )
    found = msgspec.json.decode(done.stdout, type=Told).type_completeness
    exported = [each for each in found.symbols if each.is_exported]
    assert len(exported) > 5000, "it has seen the package"
    unknown = [
        f"{each.name}: {each.diagnostics[0].message}"
        for each in exported
        if not each.is_type_known and each.diagnostics
    ]
    assert found.completeness_score >= LEAST, "\n".join(unknown)
