"""Prints constraints that hold every dependency in pyproject.toml at its lower bound. Called by `make test-lowest`."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
for wanted in itertools.chain(project["dependencies"], *project["optional-dependencies"].values()):
    bounded = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)", wanted)
    if bounded is None:
        raise SystemExit(f"pyproject.toml: {wanted!r} has no lower bound; write name>=version")
    print(f"{bounded[1]}=={bounded[2]}")
