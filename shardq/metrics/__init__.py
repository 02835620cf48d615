"""Metrics for Prometheus, and the probes of a container platform.

    >>> registry.register(shardq.metrics.collector(engine))       # an own registry, or prometheus_client.REGISTRY

``shardq run --http HOST:PORT`` and ``shardq work --http HOST:PORT`` serve them, with ``/livez`` and ``/readyz``. A
program of yours does it with ``serve``. It needs prometheus-client: ``pip install 'shardq[metrics]'``. ``README.md``
beside this file says what each metric tells.
"""

from shardq.core.lazy import TYPE_CHECKING, lazily

if TYPE_CHECKING:
    from shardq.metrics.exposition import Collector, collector
    from shardq.metrics.http import Address, ProbeServer, serve
else:
    # The probes work without prometheus-client.
    __getattr__, __dir__ = lazily(
        __name__,
        {
            **dict.fromkeys(("Collector", "collector"), "shardq.metrics.exposition"),
            **dict.fromkeys(("Address", "ProbeServer", "serve"), "shardq.metrics.http"),
        },
        needs={"prometheus_client": "shardq.metrics needs prometheus-client: pip install 'shardq[metrics]'"},
    )

__all__ = ["Address", "Collector", "ProbeServer", "collector", "serve"]
