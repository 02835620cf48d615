"""The version of this build: of the installed package, or of the checkout that it runs from, whose revision may be
newer than the one that was installed. Loaded at its first use.
"""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def _of_this_build() -> str:
    checkout = Path(__file__).parent.parent / ".ci" / "version.py"
    if checkout.exists():
        from runpy import run_path

        return str(run_path(str(checkout))["__version__"])
    try:
        return version("shardq")
    except PackageNotFoundError:  # a zipapp or a frozen program may have no metadata of its packages
        return "unknown"


__version__ = _of_this_build()
