"""Every error that shardq raises on purpose, in one tree.

    ShardqError
    ├── BadInput (also a ValueError)
    │   ├── InvalidDelay, NaiveDatetime, DelayAndAt, DedupWithoutId, InvalidShardCount
    │   ├── InvalidName, InvalidTopic, InvalidId, InvalidUrl
    │   ├── PayloadTooLarge, PayloadNotEncodable
    │   └── InvalidOption                any other argument; MissingLink is one
    ├── ServerFault
    │   ├── Unavailable                  TooManyOpenFiles is one
    │   ├── Unanswered
    │   ├── ServerTooOld, OutOfMemory, ReadOnly, AccessDenied, DurabilityUnavailable
    │   └── SettleError
    ├── PushError, NotReplicated, Conflict
    ├── LeaseLost
    ├── PayloadNotDecodable              PayloadNotAuthentic is one
    ├── UnknownSchedule, ChangeUnderWay, IncompatibleVersion, AnotherEngine
    ├── SpoolFault                       SpoolFull is one
    ├── MissingPackage (also an ImportError)
    ├── EmbeddedFault
    └── EngineClosed

What is a normal answer is a value, not an exception: ``cancel`` of an id that is gone returns ``Outcome.GONE``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


class ShardqError(Exception):
    """The root of all errors of shardq.

    >>> try:
    ...     engine.push({"order": 42})
    ... except shardq.ShardqError as error:
    ...     print(type(error).__name__, error)
    """


class BadInput(ShardqError, ValueError):
    """An argument is outside what is allowed. Nothing was written.

    >>> try:
    ...     engine.push({"order": 42}, delay=-1)
    ... except shardq.BadInput as error:
    ...     print(error)                # says what is allowed
    """


class InvalidDelay(BadInput):
    """A delay (or due time) that is negative, not a number, infinite, or past the year 9999."""


class NaiveDatetime(BadInput):
    """A datetime without a time zone: it names no instant."""


class DelayAndAt(BadInput):
    """Both delay= and at= were given."""


class DedupWithoutId(BadInput):
    """dedup= was given without id=."""


class InvalidName(BadInput):
    """The name of an engine or a consumer has characters that are not allowed."""


class InvalidTopic(BadInput):
    """A topic has characters that are not allowed."""


class InvalidId(BadInput):
    """A caller-given id is empty, too long, or has characters that are not allowed."""


class InvalidKey(BadInput):
    """A key is empty, too long, or has characters that are not allowed."""


class InvalidOption(BadInput):
    """An option has a value outside what is allowed."""


class MissingLink(InvalidOption):
    """The engine has tasks in a store beside Redis, and this process was opened without it."""

    def __init__(self, link: str, what: str) -> None:
        self.link = link
        self.what = what
        super().__init__(
            f"{what} can't be told by Redis alone: the engine has tasks in another store, and was opened without it "
            f"here; give {link}= (--{link}, $SHARDQ_{link.upper()}), as the other processes do"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.link, self.what)


class PayloadTooLarge(BadInput):
    """An encoded payload is larger than the limit."""


class PayloadNotEncodable(BadInput):
    """The codec cannot encode this payload."""


class InvalidShardCount(BadInput):
    """A shard count outside 1..1024."""


class InvalidUrl(BadInput):
    """A URL whose scheme or parts are not understood. The message never shows a password."""


class ServerFault(ShardqError):
    """The server answered with an error, or did not answer.

    >>> try:
    ...     engine.push({"order": 42}, id="order-42")
    ... except shardq.ServerFault as error:
    ...     print(error.node, error)    # with an id of your own it is safe to push again
    """

    node: str = ""
    """The address of the server that was asked last; empty where it was none in particular."""
    tried_s: float = 0.0
    """How long it was tried, in seconds."""


class ServerTooOld(ServerFault):
    """The server is older than 7.0."""


class Unavailable(ServerFault):
    """No server could take the call before the timeout. Nothing of this call was written."""


class TooManyOpenFiles(Unavailable):
    """This process, or its whole system, has no file descriptor left for a connection. Nothing of this call was
    written.
    """


class Unanswered(ServerFault):
    """The call was sent and its answer lost, and no later try was answered either: its effect is unknown."""

    last: ShardqError | None = None
    """The error that the last try met."""


class OutOfMemory(ServerFault):
    """The server has reached its maxmemory and refuses more tasks; stored tasks are still handled, and operator
    commands still work. Nothing was written.
    """


class ReadOnly(ServerFault):
    """The server refuses writes: a replica, or a master that can't save to its disk. Nothing was written."""


class AccessDenied(ServerFault):
    """The server refused the user, the password, or a command: by its ACL, or because it has it switched off."""


class DurabilityUnavailable(ServerFault):
    """The server has no replica, no append-only file, or no WAITAOF, so that it could never confirm what durability=
    asks for. Nothing was written.
    """


class SettleError(ServerFault):
    """Deliveries were settled together, and some shards failed.

    ``settled`` has the ids that were settled, ``lost`` those whose lease was lost before. ``failed`` maps an id to its
    reason; nothing was changed for it. For ids in ``unknown`` the answer was lost. Settle the last two again; ids that
    were done answer as lost.

    >>> try:
    ...     consumer.ack(deliveries)
    ... except shardq.errors.SettleError as error:
    ...     again = {*error.failed, *error.unknown}
    ...     consumer.ack(each for each in deliveries if each.id in again)
    """

    def __init__(
        self,
        *,
        settled: Sequence[str],
        lost: Sequence[str],
        failed: Mapping[str, ShardqError],
        unknown: Sequence[str],
        first: ShardqError,
    ) -> None:
        self.settled: list[str] = list(settled)
        self.lost: list[str] = list(lost)
        self.failed: dict[str, ShardqError] = dict(failed)
        self.unknown: list[str] = list(unknown)
        super().__init__(
            f"{len(self.settled)} of the deliveries are settled, {len(self.failed)} are not, {len(self.unknown)} have "
            f"an unknown fate; settle those in .failed and .unknown again; the first failure: {first}"
        )


class PushError(ShardqError):
    """A bulk push that did not store every task.

    ``stored`` and ``unknown`` are ids, ``failed`` maps an id to its reason, ``ids`` are all ids of the call in
    the order of its tasks, those of stored ones as their receipts. ``unknown`` means that the answer was lost: pushing
    those again under the same ids (``id=``) is safe. An id that the call has more than once is in ``stored`` and
    ``unknown`` for each of its tasks that is, and may be in ``failed``, too.

    >>> tasks = [shardq.Task(n, id=f"n-{n}") for n in range(1000)]
    >>> try:
    ...     engine.push_many(tasks)
    ... except shardq.PushError as error:
    ...     again = {*error.failed, *error.unknown}
    ...     engine.push_many([task for task in tasks if task.id in again])
    """

    def __init__(
        self,
        *,
        ids: Sequence[str],
        stored: Sequence[str],
        failed: Mapping[str, ShardqError],
        unknown: Sequence[str],
        first: ShardqError | None = None,
    ) -> None:
        """``first``: why a task has an unknown fate, where no other one has failed."""
        self.ids: list[str] = list(ids)
        self.stored: list[str] = list(stored)
        self.failed: dict[str, ShardqError] = dict(failed)
        self.unknown: list[str] = list(unknown)
        self._first = next(iter(self.failed.values()), first)
        why = f"; the first failure: {self._first}" if self._first is not None else ""
        super().__init__(
            f"{len(self.stored)} of {len(self.ids)} tasks are stored, "
            f"{len(self.ids) - len(self.stored) - len(self.unknown)} are not, "
            f"{len(self.unknown)} have an unknown fate{why}"
        )

    @classmethod
    def merged(cls, errors: Iterable[PushError]) -> PushError:
        """One error that says what several say."""
        errors = list(errors)
        return cls(
            ids=[id for error in errors for id in error.ids],
            stored=[id for error in errors for id in error.stored],
            failed={id: why for error in errors for id, why in error.failed.items()},
            unknown=[id for error in errors for id in error.unknown],
            first=next((error._first for error in errors if error._first is not None), None),
        )


class NotReplicated(ShardqError):
    """The tasks are stored, but fewer copies confirmed them in time than durability= asked for.

    ``reached`` is how many did, of the least replicated. They will be dispatched; pushing them again under the same ids
    is safe, and confirms them anew.

    >>> try:
    ...     engine.push({"order": 42}, id="order-42", durability="replicated")
    ... except shardq.errors.NotReplicated as error:
    ...     print(error.reached, "replicas have it")
    ... except shardq.errors.DurabilityUnavailable:
    ...     print("nothing is stored: there is no replica")
    """

    def __init__(self, ids: Sequence[str], reached: int, wanted: str, refusal: str = "") -> None:
        self.ids: list[str] = list(ids)
        self.reached = reached
        stored = "1 task is stored" if len(self.ids) == 1 else f"{len(self.ids):,} tasks are stored"
        super().__init__(
            f"{stored}, but not known to be {wanted}, which can't be asked: {refusal}"
            if refusal
            else f"{stored}, but not {wanted}: {reached} confirmed it in time; check the replicas (or the append-only "
            "file), and push again under the same id to be sure"
        )


class Conflict(ShardqError):
    """The id is taken and on_conflict="reject". ``state`` says where the present holder of the id is.

    >>> try:
    ...     engine.push({"order": 42}, id="order-42", on_conflict="reject")
    ... except shardq.Conflict as error:
    ...     print(error.id, "is", error.state)
    """

    def __init__(self, id: str, state: str) -> None:
        self.id = id
        self.state = state
        super().__init__(
            f'id {id!r} is already {state}; push with on_conflict="keep" to leave it or "replace" to take over'
        )


class UnknownSchedule(ShardqError):
    """No schedule has this name: it was never declared, or was removed; or it can't be read here."""

    def __init__(self, name: str, problem: str | None = None) -> None:
        self.name = name
        if problem is None:
            text = f"there is no schedule named {name!r:.80}; engine.schedules() and `shardq every` list all"
        else:
            text = f"the schedule {name!r:.80} can't be read ({problem}); upgrade shardq, declare it anew or remove it"
        super().__init__(text)


class ChangeUnderWay(ShardqError):
    """Another number of shards has been announced, or announced first. ``pending`` is that number.

    >>> try:
    ...     engine.resize(8)
    ... except shardq.errors.ChangeUnderWay as error:
    ...     engine.resize(dry_run=True).wait(timeout=600)   # of the change to error.pending
    """

    def __init__(self, pending: int, wanted: int, *, keyed: bool = False) -> None:
        self.pending = pending
        then = (
            "tasks with keys move in one change at a time: wait until it is done, resize(dry_run=True).wait()"
            if keyed
            else f"repeat that for {pending} to help it along, or wait until it is in force"
        )
        super().__init__(f"a change to {pending} shards is under way, so there can be none to {wanted} now; {then}")


class IncompatibleVersion(ShardqError):
    """The engine is stored in a format that this build of shardq can't read, or uses a feature that it does not know;
    or that is to be changed, and processes live that could not read it then. Nothing was done.

    >>> try:
    ...     engine.open()
    ... except shardq.errors.IncompatibleVersion as error:
    ...     print(error)                # says which format it is, and which ones are read
    """


class AnotherEngine(ShardqError):
    """The address leads to another engine of the same name: one that was there before this process last heard of its
    own. Nothing was written. The error ends when the address leads home, or when you restart this program.

    >>> try:
    ...     engine.push({"order": 42})
    ... except shardq.errors.AnotherEngine as error:
    ...     print(error.known, error.found)    # the ids of both
    """

    def __init__(self, name: str, *, known: str, found: str, shard: int | None = None) -> None:
        self.name: str = name
        self.known: str = known
        self.found: str = found
        self.shard: int | None = shard
        where = "the server" if shard is None else f"shard {shard}"
        super().__init__(
            f"{where} has another engine named {name!r}: this process knows {known}, and found {found}; nothing was "
            "written. See where the address leads; to work with that engine, start this program anew"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _another, (self.name, self.known, self.found, self.shard)


def _another(name: str, known: str, found: str, shard: int | None) -> AnotherEngine:
    return AnotherEngine(name, known=known, found=found, shard=shard)


class LeaseLost(ShardqError):
    """The lease of these deliveries is no longer held: they were settled before, or it ran out and another consumer got
    them. Nothing was changed for them.

    >>> try:
    ...     consumer.ack(delivery)
    ... except shardq.LeaseLost as error:
    ...     print(error.ids, "are handled by another")
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids: list[str] = list(ids)
        shown = ", ".join(self.ids[:5]) + (", …" if len(self.ids) > 5 else "")
        count = "1 task" if len(self.ids) == 1 else f"{len(self.ids):,} tasks"
        super().__init__(
            f"the lease of {count} is no longer held: {shown}; the task was settled before, or its lease ran out and "
            "another consumer got it: settle each delivery once, and for long work use a longer lease or extend()"
        )


class PayloadNotDecodable(ShardqError):
    """A stored payload cannot be read by its codec, or is not of the types that its handler is annotated with."""


class PayloadNotAuthentic(PayloadNotDecodable):
    """A stored payload is in the clear where payloads are encrypted, or was not encrypted for its task by a known key.
    A worker that meets it buries the task at once.
    """


class SpoolFault(ShardqError):
    """The file of ``spool=`` can't be used: it is broken, belongs to another engine, or its disk is full. The command
    was not spooled, and no server took it. While a server can be reached, pushes go there instead.
    """


class SpoolFull(SpoolFault):
    """The spool holds as many bytes as ``spool_bytes=`` allows. The command was not spooled."""


class MissingPackage(ShardqError, ImportError):
    """A package that is needed here is not installed. The message has the line for pip."""


class EmbeddedFault(ShardqError):
    """The embedded server could not be found, started or reached, or there is no directory for its data.

    Raised when an engine opens. A server that is lost later is started again; where it can't be, calls end as
    Unavailable.
    """


class EngineClosed(ShardqError):
    """The engine is closed, or open in another event loop; or this was given out by a parent process, before a fork."""
