"""Benches measure what the engine costs and how late it is, on real servers of this machine. They assert no times.

``python -m bench`` runs the suites, ``python -m bench.nodes`` measures clusters, ``pytest bench --benchmark-only``
times single functions, ``python -m bench.failovers`` counts what failovers lose, ``python -m bench.sinks`` measures
relays, ``python -m bench.rq_scheduler`` compares with the scheduler of RQ, ``python -m bench.guard`` compares ratios
with a baseline, ``python -m bench.reporting`` writes the report.
Reading order: ``figures`` (the results), ``cores`` and ``stand`` (servers, watched from outside), ``monitor`` and
``limit`` (two ways of measuring), ``children``, ``draining`` and ``probing`` (other processes that take part),
``loads`` and ``consuming`` (work), ``suites`` (what is measured), ``machine``, ``table``, ``arguments``
and ``command``; then ``ratios`` and ``guard`` (what must not fall), and ``reporting``.
"""
