"""The transactional outbox: tasks that are pushed in a transaction of the caller's database.

    >>> shardq.outbox.create(database)                                   # once: the table ``shardq_outbox``
    >>> with Session(database) as session, session.begin():
    ...     session.add(order)
    ...     shardq.outbox.push(session, {"order": 42}, delay=1800)       # committed with the order, or not at all

``shardq outbox run --database URL``, or an ``OutboxRelay``, moves committed rows to the engine. It needs SQLAlchemy:
``pip install 'shardq[sql]'``. ``README.md`` beside this file says how it works and what it costs.
"""

from shardq.core.lazy import TYPE_CHECKING, lazily

if TYPE_CHECKING:
    from shardq.engine.around import RelayStats
    from shardq.outbox.relay import OutboxRelay
    from shardq.relay.table import (
        Outbox,
        cancel,
        create,
        default_outbox,
        push,
        push_many,
        reschedule,
        sql,
        table,
    )
else:
    # Rows can be packed without SQLAlchemy, as the Django app does.
    __getattr__, __dir__ = lazily(
        __name__,
        {
            **dict.fromkeys(
                ("Outbox", "cancel", "create", "default_outbox", "push", "push_many", "reschedule", "sql", "table"),
                "shardq.relay.table",
            ),
            "OutboxRelay": "shardq.outbox.relay",
            "RelayStats": "shardq.engine.stats",
        },
        needs={"sqlalchemy": "shardq.outbox needs SQLAlchemy 2: pip install 'shardq[sql]'"},
    )

__all__ = [
    "Outbox",
    "OutboxRelay",
    "RelayStats",
    "cancel",
    "create",
    "default_outbox",
    "push",
    "push_many",
    "reschedule",
    "sql",
    "table",
]
