"""The transactional outbox: tasks that are pushed in a transaction of the caller's database.

    >>> shardq.outbox.create(database)                                   # once: the table ``shardq_outbox``
    >>> with Session(database) as session, session.begin():
    ...     session.add(order)
    ...     shardq.outbox.push(session, {"order": 42}, delay=1800)       # committed with the order, or not at all

``shardq outbox run --database URL``, or an ``OutboxRelay``, moves committed rows to the engine. It needs SQLAlchemy:
``pip install 'shardq[sql]'``. How it works and what it costs is in ``README.md`` beside this file.
"""

try:
    import sqlalchemy as _sqlalchemy
except ImportError as exc:
    raise ImportError("shardq.outbox needs SQLAlchemy: pip install 'shardq[sql]'") from exc

from shardq.outbox.relay import OutboxRelay
from shardq.outbox.table import Outbox

if int(_sqlalchemy.__version__.partition(".")[0]) < 2:
    raise ImportError(
        f"shardq.outbox needs SQLAlchemy 2, and {_sqlalchemy.__version__} is installed: pip install 'shardq[sql]'"
    )

default = Outbox()
create = default.create
push = default.push
push_many = default.push_many
sql = default.sql
table = default.table

__all__ = ["Outbox", "OutboxRelay", "create", "default", "push", "push_many", "sql", "table"]
