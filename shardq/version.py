"""The version, of the installed package: the one source is ``pyproject.toml``. Loaded at its first use."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("shardq")
except PackageNotFoundError:  # a zipapp or a frozen program may have no metadata of its packages
    __version__ = "unknown"
