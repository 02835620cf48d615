"""Programs of other languages on this machine. No package that pip installs has one, so they are the system's: what
needs one that is missing is left out, and the last lines of the run say so.
"""

from __future__ import annotations

import shutil

import pytest

PACKAGES = {"node": "nodejs", "go": "golang-go", "curl": "curl"}
"""Program → the package of Debian and Ubuntu that has it."""


def needed(*programs: str) -> None:
    """Leaves the test out if one of these is not on the PATH."""
    for each in programs:
        if shutil.which(each) is None:
            pytest.skip(f"there is no {each} on the PATH; on Debian and Ubuntu: apt-get install {PACKAGES[each]}")
