"""The master of a service, as it is learnt from its sentinels: whom to ask, and when to stop asking. No I/O.

``election`` says which of their words count.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from shardq.core.drivers.election import Election, Survey, Vote
from shardq.core.drivers.faults import ErrorReply, Fault, Reaction, of_reply
from shardq.core.drivers.questions import LOOK_TIMEOUT_S, Query, Question, answered, asked_of, knows_not, of_all
from shardq.core.drivers.settings import Settings, located
from shardq.core.drivers.slot_map import SlotMap, text_of
from shardq.errors import InvalidUrl, Unavailable

# The most servers that are asked if they are masters, too, by a look for health.
SUSPECTS = 5


def elected(
    settings: Settings, present: SlotMap | None, doubted: str, silent: set[str]
) -> Generator[Question, Any, SlotMap | Fault]:
    """The master, or why it can't be had. See ``discover``."""
    failed_with: list[tuple[str, Fault]] = []
    votes: list[Vote] = []
    seen = present.epoch if present is not None else 0
    sentinels = _sentinels(settings)
    unasked = sorted(sentinels, key=silent.__contains__)
    while unasked and not Election(votes, len(sentinels)).is_decided:
        sentinel = unasked.pop(0)
        vote = yield from _vote(settings, sentinel)
        if isinstance(vote, Vote):
            silent.discard(sentinel)
            votes.append(vote)
        else:
            silent.add(sentinel)
            failed_with.append((sentinel, vote))
    if not votes:
        return of_all(failed_with)
    election = Election(votes, len(sentinels), seen)
    refusal = "" if election.is_decided else (yield from _refusal(settings, election, present))
    if (master := election.master) is None or refusal:
        advice = f"ask each for SENTINEL MASTER {settings.service}, and name the sentinels of one service only"
        return Fault(Reaction.WAIT, Unavailable, refusal, advice=advice)
    found = SlotMap((master,), epoch=election.epoch)
    is_new = present is None or master not in present.nodes
    if not is_new and not doubted:
        return found
    # Sentinels name the old master until they have agreed on a new one; only its own word counts.
    role = yield from asked_of(settings, Query(master, ("ROLE",)))
    if not isinstance(role, Fault) and role[0] == b"master":
        return found
    newer = yield from _of_a_new_failover(settings, election, [each for each in unasked if each not in silent])
    if newer is not None:
        return newer
    by = ", ".join(vote.sentinel for vote in votes if vote.master == master)
    if not isinstance(role, Fault):
        text = f"it was named as the master by {by} but is a {role[0].decode()}"
        failed_with.append((master, Fault(Reaction.WAIT, Unavailable, text)))
    elif present is not None and is_new and election.epoch > seen:
        return found  # what is written to the one that they have replaced is lost
    else:
        failed_with.append((f"{master}, named by {by}", role))
    for vote in election.dissent:
        text = f"it names {vote.master} (config-epoch {vote.epoch}) against the others, and is not believed"
        failed_with.append((vote.sentinel, Fault(Reaction.WAIT, Unavailable, text)))
    return of_all(failed_with)


def _refusal(settings: Settings, election: Election, present: SlotMap | None) -> Generator[Question, Any, str]:
    """Why less than a majority is not believed; empty if it is. Former and future masters are replicas to a sentinel:
    one that knows nothing of the other master watches another service.
    """
    master = election.master
    if master is None:
        return election.refusal
    if election.dissent:
        other, stranger = election.dissent[0].sentinel, master
    elif present is not None and master not in present.nodes:
        other, stranger = election.votes[0].sentinel, present.nodes[0]
    else:
        return ""
    if stranger in (yield from _replicas(settings, other)):
        return ""
    told = "; ".join(map(str, election.votes))
    return (
        f"{len(election.votes)} of {election.asked} sentinels answer, and not with one voice of a majority: {told}; "
        f"{other} knows nothing of {stranger}"
    )


def _of_a_new_failover(
    settings: Settings, election: Election, unasked: Sequence[str]
) -> Generator[Question, Any, SlotMap | None]:
    """The master of a failover of which most sentinels have not heard yet, as the one that carries it out tells: a
    replica by the word of the others, and a master by its own.
    """
    votes = list(election.votes)
    for sentinel in unasked:
        vote = yield from _vote(settings, sentinel)
        votes += [vote] if isinstance(vote, Vote) else []
    newest = max(votes, key=lambda vote: vote.epoch)
    if newest.epoch <= election.epoch or newest.master == election.master:
        return None
    voter = next(vote.sentinel for vote in votes if vote.master == election.master)
    replicas = yield from _replicas(settings, voter)
    role = (yield from answered(Query(newest.master, ("ROLE",)))) if newest.master in replicas else None
    if role is None or isinstance(role, Fault) or role[0] != b"master":
        return None
    return SlotMap((newest.master,), epoch=newest.epoch)


def _replicas(settings: Settings, sentinel: str) -> Generator[Question, Any, dict[str, bool]]:
    """The replicas that a sentinel knows; true if it may be a master by now. One that was replaced is among them: it
    will be a replica when it is reached again.
    """
    words = ("SENTINEL", "REPLICAS", settings.service)
    told = yield from answered(Query(sentinel, words, sentinel=True, within_s=LOOK_TIMEOUT_S))
    return {
        located(fields["ip"], int(fields["port"]), asked=sentinel): (
            "s_down" in fields["flags"] or fields["role-reported"] == "master"
        )
        for fields in ([] if isinstance(told, Fault) else map(_pairs, told))
    }


def survey(settings: Settings, present: SlotMap) -> Generator[Question, Any, Survey]:
    """Asks all sentinels, and whoever may take itself for the master beside the one that they name."""
    votes: list[Vote] = []
    silent: dict[str, str] = {}
    suspects = set(present.nodes)
    sentinels = _sentinels(settings)
    for sentinel in sentinels:
        vote = yield from _vote(settings, sentinel)
        if isinstance(vote, Fault):
            silent[sentinel] = vote.text
            continue
        votes.append(vote)
        suspects.add(vote.master)
        replicas = yield from _replicas(settings, sentinel)
        suspects |= {replica for replica, may_be_master in replicas.items() if may_be_master}
    election = Election(votes, len(sentinels))
    rivals = []
    for suspect in sorted(suspects - {election.master})[:SUSPECTS]:
        role = yield from answered(Query(suspect, ("ROLE",), within_s=LOOK_TIMEOUT_S))
        if not isinstance(role, Fault) and role[0] == b"master":
            rivals.append(suspect)
    return Survey(election, silent, rivals)


def _sentinels(settings: Settings) -> list[str]:
    return list(dict.fromkeys(settings.addresses))


def _vote(settings: Settings, sentinel: str) -> Generator[Question, Any, Vote | Fault]:
    """The word of a sentinel."""
    # The epoch first: the address is of then or newer, and a failover under way shows it in the second answer only.
    words = ("SENTINEL", "MASTER", settings.service), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", settings.service)
    answers = yield from asked_of(settings, Query(sentinel, words[0], sentinel=True, also=words[1]))
    if isinstance(answers, Fault):
        return _no_sentinel(answers)
    fields, named = answers
    if isinstance(named, ErrorReply):
        named = of_reply(named.text, asked=sentinel)
    if isinstance(named, Fault):
        return _no_sentinel(named)
    if named is None:
        return Fault(Reaction.WAIT, Unavailable, f"the sentinel does not know the service {settings.service!r}")
    told = {} if isinstance(fields, ErrorReply | Fault) else _pairs(fields)
    master = located(named[0].decode(), int(named[1]), asked=sentinel)
    others = int(told.get("num-other-sentinels", 0))
    return Vote(sentinel, master, int(told.get("config-epoch", 0)), others + 1)


def _pairs(answer: dict[bytes, Any] | list[Any]) -> dict[str, str]:
    """The fields of an answer in RESP3, or in RESP2."""
    fields = answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))
    return {text_of(name): text_of(value) for name, value in fields.items() if isinstance(value, bytes)}


def _no_sentinel(fault: Fault) -> Fault:
    if not knows_not("SENTINEL", fault):
        return fault
    advice = "for a single server write redis://host:port, for a cluster redis+cluster://host:port"
    return Fault(Reaction.END, InvalidUrl, "it is not a sentinel", advice=advice)
