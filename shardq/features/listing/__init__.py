"""Looking at many tasks at once, and acting on them: ``engine.tasks(topic="mail", state="dead")``.

``query`` is what is asked for, and the cursor of a page; ``pages`` reads the ids of a page, from all shards in one
order, and ``reading`` their tasks. ``bulk`` cancels, requeues and reschedules what a query matches, and ``forecast``
counts what falls due. ``README.md`` beside this file says in which order tasks are listed and what a page costs.
"""

from shardq.features.listing.bulk import BulkResult
from shardq.features.listing.forecast import Forecast
from shardq.features.listing.query import TaskPage

__all__ = ["BulkResult", "Forecast", "TaskPage"]
