"""The version, of the installed package: the one source is ``pyproject.toml``. Loaded at its first use."""

from importlib.metadata import version

__version__ = version("shardq")
