"""The one loop above consumers that claims deliveries for handlers, runs them, and settles each delivery once.

``handler`` says how a topic is handled, ``job`` what a call of a handler is given: one delivery, or a batch of them.
``loop`` is the whole: of a worker, and of the routes of a dispatcher's process, whose handlers are sinks. ``fetching``
claims, ``linger`` waits for a batch to fill, ``runners`` call functions on threads and coroutines on a loop,
``in_flight`` holds what is claimed and not settled, and ``strays`` the handlers that run on after their tasks were
ended. ``calling`` calls a handler with a batch, and ``isolation`` finds the poisoned task in one
that has failed.

Where topics are too many for a thread each, as those of routes, ``lookout`` watches the ones without tasks, and
``roused`` claims from the others.
"""
