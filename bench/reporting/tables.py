"""Tables of the figures in HTML, and a short one in Markdown for README."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from bench.peers.outcome import COLUMNS, Outcome, best
from bench.reporting.inputs import Figure, Nodes, Results, distinct
from bench.reporting.plots import OURS
from bench.table import shown


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Returns a table. Cells are HTML; ``right`` are the columns of numbers."""

    def cell(kind: str, number: int, text: str) -> str:
        return f'<{kind} class="n">{text}</{kind}>' if number in right else f"<{kind}>{text}</{kind}>"

    head = "".join(cell("th", number, escape(text)) for number, text in enumerate(heads))
    body = "\n".join(f"<tr>{''.join(cell('td', number, text) for number, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def figures(found: Sequence[Figure]) -> str:
    """Returns everything that suites say of these figures."""
    rows = []
    for figure in found:
        shares = ", ".join(f"{share}&nbsp;{shown(value)}" for share, value in figure.percentiles.items())
        reference = escape(figure.reference)
        rows.append([escape(figure.name), shown(figure.value), escape(figure.unit), shares, reference])
    return table(("figure", "", "unit", "percentiles", "beside it"), rows, right=(1,)) if rows else ""


def sizes(results: Results) -> str:
    """Returns a row for each kind of work and payload, with a column for each number of shards."""
    curves = distinct(name for figure in results.figures if (name := str(figure.at.get("curve"))).startswith("sizes"))
    if not curves:
        return ""
    of_sizes = [figure for figure in results.figures if figure.at.get("curve") in curves]
    shards = distinct(float(figure.at["shards"]) for figure in of_sizes)
    rows = []
    for curve in curves:
        for size in distinct(float(figure.at["bytes"]) for figure in results.curve(curve)):
            cells = [
                shown(figure.value)
                for count in shards
                for figure in results.curve(curve)
                if (figure.at["bytes"], figure.at["shards"]) == (size, count)
            ]
            rows.append([escape(curve.removeprefix("sizes: ")), f"{size:,.0f}&nbsp;B", *cells])
    heads = ("tasks/s", "payload", *(f"{count:.0f} shard{'s' if count > 1 else ''}" for count in shards))
    return table(heads, rows, right=range(1, 2 + len(shards)))


def scales(results: Results) -> str:
    """Returns a row for each size that was tried, with what it takes."""
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    heads = ("consumers", "shards", "topics", "dead", "limit")
    curves = ("scales: a task", "scales: an idle minute", "scales: a row of history")
    for curve in curves:
        for figure in results.curve(curve):
            found = (figure.at[head] for head in heads)
            sizes = tuple(escape(size) if isinstance(size, str) else f"{size:,.0f}" for size in found)
            rows.setdefault(sizes, {})[curve] = shown(figure.value)
    told = [[*sizes, *(counts.get(curve, "") for curve in curves)] for sizes, counts in rows.items()]
    counted = ("scripts a task", "commands an idle minute", "scripts a row of history")
    return table((*heads, *counted), told, right=(0, 1, 2, 3, 5, 6, 7)) if told else ""


def memory(results: Results) -> str:
    """Returns the memory of a task. The engine's share is what comes on top of the payload."""
    rows = [
        [
            f"payload of {float(figure.at['bytes']):,.0f} B",
            shown(figure.value),
            shown(figure.value - float(figure.at["bytes"])),
        ]
        for figure in results.curve("memory: bytes")
    ]
    rows += [
        [escape(figure.name.removeprefix("memory, ")), shown(figure.value), shown(figure.value - 100)]
        for curve in ("memory: id", "memory: key")
        for figure in results.curve(curve)
    ]
    return table(("12,500 pending a shard", "bytes/task", "beside the payload"), rows, right=(1, 2)) if rows else ""


def peers(found: Outcome) -> str:
    """Returns the peers' figures. The best of each column is marked."""
    ahead = best(found.peers)
    rows = []
    for peer in found.peers:
        cells = []
        for column in COLUMNS:
            value = peer.rows.get(column)
            text = "–" if value is None else shown(value)
            cells.append(f"<b>{text}</b>" if ahead.get(column) == peer.name else text)
        name = f"<b>{escape(peer.name)}</b>" if peer.name == OURS else escape(peer.name)
        if peer.problem:
            name += f'<br><span class="soft">not measured: {escape(peer.problem)}</span>'
        rows.append([name, *cells])
    return table(("", *COLUMNS.values()), rows, right=range(1, 1 + len(COLUMNS)))


def usage(found: Outcome) -> str:
    """Returns the versions and settings of peers."""
    return table(
        ("", "version", "how it was used"),
        [[escape(peer.name), escape(peer.version), escape(peer.how)] for peer in found.peers],
    )


def nodes(found: Nodes) -> str:
    """Returns the costs on each size of cluster."""
    rows = [
        [
            f"{one.masters}",
            escape(name),
            shown(work.tasks_per_s),
            shown(work.server_us),
            shown(work.client_us),
            shown(work.balance.tasks),
            shown(work.balance.cpu),
        ]
        for one in found.measured
        for name, work in one.work.items()
    ]
    heads = ("masters", "work", "tasks/s", "server µs/task", "client µs/task", "fullest ÷ mean: tasks", "CPU")
    return table(heads, rows, right=(0, 2, 3, 4, 5, 6)) if rows else ""


def named(values: Mapping[str, float]) -> str:
    return table(
        ("", ""), [[escape(name.replace("_", " ")), shown(value)] for name, value in values.items()], right=(1,)
    )


def facts(known: Mapping[str, str]) -> str:
    rows = [f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in known.items()]
    return f"<dl>{''.join(rows)}</dl>"


def servers(results: Results, oldest: Results, *suites: str) -> str:
    """Returns the figures of these suites on both servers, side by side."""
    others = {(figure.suite, figure.name): figure for figure in oldest.figures}
    rows = [
        [escape(figure.name), escape(figure.unit), *(cell for each in (figure, other) for cell in _cells(each))]
        for figure in results.of(*suites)
        if (other := others.get((figure.suite, figure.name))) is not None
    ]
    heads = [head for each in (results, oldest) for head in (_server(each), "÷ limit")]
    return table(("figure", "unit", *heads), rows, right=(2, 3, 4, 5)) if rows else ""


def _cells(figure: Figure) -> tuple[str, str]:
    shares = [shown(figure.percentiles[share]) for share in ("p50", "p99") if share in figure.percentiles]
    return " / ".join(shares) or shown(figure.value), "" if figure.ratio is None else f"{figure.ratio:.2f}"


def _server(results: Results) -> str:
    """Returns the name and version of the server."""
    return results.facts.get("server", "").partition(",")[0]


def markdown(results: Results | None, oldest: Results | None, found: Outcome | None) -> str:
    """Returns a table for README: the figures that most people ask for, and their comparisons."""
    other = f"on {_server(oldest)}" if oldest else "on the oldest server"
    lines = [f"| what | figure | beside it | {other} |", "| --- | --- | --- | --- |"]
    for suite, begins, label in (
        ("push", "push_many", "`push_many`, one process, 100 B"),
        ("push", "push_iter", "`push_iter`, the tasks made on the way"),
        ("push", "push, one at a time", "`push`, one at a time"),
        ("push", "buffered", "buffered pushes from 8 threads"),
        ("dispatch", "dispatch of", "due tasks made ready, 16 shards"),
        ("dispatch", "dispatch and forward", "due payloads put on a foreign list"),
        ("dispatch", "dispatch, the textbook's way", "the textbook's `LIMIT 0 1`"),
        ("burst", "1,000,000 due at once", "1,000,000 due at one instant, until the last is ready"),
        ("consume", "worker, no-op functions", "a no-op worker, one process"),
        ("lateness", "due → ready", "from due to ready, idle"),
        ("lateness", "due → handler of a worker (function)", "from due to the handler, idle"),
        ("flow", "due → claimed while 50,000", "from due to claimed while 50,000 tasks/s fall due"),
        ("idle", "idle, 64 shards", "idle, commands of a shard"),
        ("memory", "memory, 12,500", "a pending task of 100 B, everything included"),
        ("keys", "20,000 keys × 3, one at a time, one b", "20,000 keys × 3, one of each at a time, no backlog"),
        ("keys", "20,000 keys × 3, one at a time, all", "the same, all due at once"),
        ("keys", "20,000 keys × 3, one at a time, all at once: server", "a task of these, the server's CPU"),
        ("keys", "20,000 keys × 3, one at a time, all at once, pushes", "a push of these, the server's CPU"),
        ("keys", "20,000 keys × 3, one at a time, all at once, 1 %", "their rate with 1 % more keys, on hold"),
        ("keys", "one key by itself, 1 ", "one key by itself, one at a time"),
        ("keys", "one key by itself, 20 ", "one key by itself, 20 at a time"),
        ("keys", "999 quiet keys, nothing", "999 quiet keys, from due to claimed, nothing else due"),
        ("keys", "999 quiet keys, beside one with 200,000 due, 1 ", "beside a key with 200,000 due, one at a time"),
        ("keys", "999 quiet keys, beside one with 200,000 due, 20 ", "the same, 20 at a time"),
        ("memory", "memory, held", "a held task of 100 B, everything included"),
        ("expand", "4 → 16 shards, ", "`resize(16)` from 4 shards with 200,000 pending, in force after"),
        ("expand", "4 → 16 shards: a push", "a push meanwhile"),
    ):
        figure = results.first(suite, begins) if results else None
        if figure is not None:
            same = oldest.first(suite, begins) if oldest else None
            lines.append(f"| {label} | {_short(figure)} | {_beside(figure)} | {_brief(same)} |")
    if found is not None and (told := _ahead(found)):
        lines += ["", told]
    if results is not None:
        lines += [
            "",
            "; ".join(results.facts.get(name, "") for name in ("machine", "server", "python", "pinned", "commit"))
            + ".",
        ]
    return "\n".join(lines) + "\n"


def _short(figure: Figure) -> str:
    if {"p50", "p99"} <= figure.percentiles.keys():
        return f"p50 {shown(figure.percentiles['p50'])}, p99 {shown(figure.percentiles['p99'])} {figure.unit}"
    return f"{shown(figure.value)} {figure.unit}"


def _brief(figure: Figure | None) -> str:
    """Returns the figure, and its ratio to the limit where it has one."""
    if figure is None:
        return "–"
    value, ratio = _cells(figure)
    return f"{value} ({ratio})" if ratio else value


def _beside(figure: Figure) -> str:
    """Returns the first comparison of a figure that is no aim."""
    parts = [part for part in figure.reference.split("; ") if not re.match("aim|by the pollers|1 a call", part)]
    return "; ".join(parts[:1])


def _ahead(found: Outcome) -> str:
    ours = next((peer for peer in found.peers if peer.name == OURS), None)
    if ours is None:
        return ""
    others = {peer.name: peer.rows for peer in found.peers if peer is not ours}
    ahead = best([peer for peer in found.peers if peer is not ours])
    parts = []
    for column, head in COLUMNS.items():
        mine, other = ours.rows.get(column), others.get(ahead.get(column, ""), {}).get(column)
        if mine is not None and other is not None:
            parts.append(f"{head} {shown(mine)} (best other: {ahead[column]} {shown(other)})")
    return f"Beside {len(found.peers) - 1} others, same work on the same server: {'; '.join(parts)}."
