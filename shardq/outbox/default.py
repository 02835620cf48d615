"""The default outbox: the table ``shardq_outbox``, payloads as JSON. ``shardq.outbox`` has its functions."""

from __future__ import annotations

from shardq.outbox.tables import Outbox

default_outbox = Outbox()

table = default_outbox.table
create = default_outbox.create
sql = default_outbox.sql
push = default_outbox.push
cancel = default_outbox.cancel
reschedule = default_outbox.reschedule
push_many = default_outbox.push_many
