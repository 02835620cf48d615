"""All suites in the order in which they run. A new one is a module with a ``SUITE``, and a line here."""

from bench.suites import (
    backlog,
    burst,
    cold,
    consume,
    dispatch,
    durable,
    expand,
    fleet,
    flow,
    idle,
    keys,
    lateness,
    memory,
    push,
    scales,
    sizes,
)

SUITES = (
    lateness.SUITE,
    flow.SUITE,
    push.SUITE,
    durable.SUITE,
    dispatch.SUITE,
    burst.SUITE,
    consume.SUITE,
    keys.SUITE,
    sizes.SUITE,
    backlog.SUITE,
    expand.SUITE,
    fleet.SUITE,
    idle.SUITE,
    scales.SUITE,
    memory.SUITE,
    cold.SUITE,
)
