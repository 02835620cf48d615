"""The report: the JSON files of the benches become one page, its plots as SVG files, and a short table for README.

``python -m bench.reporting``. Reading order: ``inputs`` (the files), ``drawing`` (the look of plots), ``plots`` (their
content), ``tables``, ``page`` and ``__main__``.
"""
