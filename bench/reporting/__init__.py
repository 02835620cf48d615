"""The report: from the JSON files of the benches to one page, its plots as SVG files, and a short table for README.

``python -m bench.reporting``. Reading order: ``inputs`` (what the files say), ``drawing`` (how plots look), ``plots``
(what is drawn), ``tables``, ``page`` and ``__main__``.
"""
