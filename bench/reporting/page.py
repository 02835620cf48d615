"""The page has its sections in the order of a reader's questions, each with its plots and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from bench.reporting import breaking, plots, tables
from bench.reporting.drawing import STYLE
from bench.reporting.inputs import CHAOS, MAKING, NODES, OLDEST, PEERS, RESULTS, SOAK, Inputs, Results, numbers
from bench.reporting.plots import Plot

_PAGE_STYLE = """
* { box-sizing: border-box; }
html { color-scheme: light dark; }
body { margin: 0; background: var(--surface); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; }
h2 { font-size: 21px; margin: 56px 0 4px; padding-top: 18px; border-top: 1px solid var(--grid); }
h3 { font-size: 15px; margin: 26px 0 2px; }
p { margin: 6px 0 12px; max-width: 70ch; }
.soft, figcaption, summary { color: var(--soft); }
figure { margin: 18px 0 6px; }
figure h3 { margin: 0 0 4px; }
figcaption { font-size: 13px; }
.scroll { overflow-x: auto; } .scroll > svg { min-width: 600px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 26px 0 0; }
.tile { border: 1px solid var(--grid); border-radius: 8px; padding: 12px 14px; }
.tile b { display: block; font-size: 24px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.tile span { font-size: 13px; color: var(--soft); }
.wide { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; line-height: 1.4; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--grid); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
summary { cursor: pointer; font-size: 14px; margin-top: 12px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 18px; font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
code { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 560px) {
main { padding: 24px 16px 60px; } dl { grid-template-columns: 1fr; } dd { margin-bottom: 8px; } }
"""


@dataclass(slots=True)
class Section:
    title: str
    text: str
    plots: Sequence[Plot] = ()
    table: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    """Folded tables by their titles."""
    missing: str = ""
    """The file without which there is nothing to show."""


def sections(inputs: Inputs) -> list[Section]:
    """Returns all sections. A section whose file is missing says so."""
    results = inputs.results or Results(complete=False, facts={}, figures=[])
    without = "" if inputs.results else RESULTS
    every = "All figures of this section"
    return [
        Section(
            "Beside what the server can do",
            "Each figure of the engine is divided by that of a client that does nothing else: redis-benchmark, written "
            "in C, sends the same script to the same server in turns with us; redis-py’s SET is the limit of "
            "single pushes. Above 1 the engine is faster: it spreads tasks over 16 shards, whose smaller sets cost the "
            "server less than the single one of the C client. Claim and settle have no such limit, because a settle "
            "repeats the answer of its claim; their figures tell how busy the server was.",
            plots.limits(results),
            details={every: tables.figures(results.of("push", "dispatch", "consume"))},
            missing=without,
        ),
        _peers(inputs),
        _oldest(inputs),
        Section(
            "How late",
            "A task is never early. Lateness is counted from its due time: until its id is in the ready list, by the "
            "server’s own stamp; until a waiting consumer has it; until the handler’s first line runs. The first "
            "rows are of an idle engine. The others were measured while tens of thousands of tasks fell due a second, "
            "while a million fell due at one instant, and while shards were added.",
            plots.lateness(results),
            details={every: tables.figures(results.of("lateness", "flow", "burst"))},
            missing=without,
        ),
        Section(
            "Payloads and shards",
            "The same work is done with small and large payloads, in one shard and in many. Dispatch moves ids only, "
            "so its rate does not depend on the payload.",
            table=tables.sizes(results),
            details={every: tables.figures(results.of("sizes"))},
            missing=without,
        ),
        Section(
            "Memory",
            "Each pending task adds these bytes to the server’s memory: id, due time, record, and the tables that hold "
            "them.",
            plots.memory(results),
            tables.memory(results),
            {every: tables.figures(results.of("memory"))},
            missing=without,
        ),
        Section(
            "Cost against backlog",
            "The plots show the server’s CPU for one task pushed, and for one dispatched, while so many others are "
            "pending at random due times. It is CPU and not time: the rate of a core is its reciprocal. The tasks of a "
            "round are spread over all shards, so that a call carries few where there are many shards.",
            plots.backlog(results),
            details={every: tables.figures(results.of("backlog"))},
            missing=without,
        ),
        Section(
            "Keys",
            "The same tasks fall due with keys and without, in turns, in one shard, and one consumer takes them. With "
            "“one behind the other” the next task of a key falls due when the one before is done; with “all at once” "
            "they wait for each other. The server’s CPU of a task is from due to acknowledged, and that of its push is "
            "apart from it. The lateness of quiet keys is from due to claimed, alone, beside a key that "
            "has a backlog due from the first instant on, and beside ten on hold.",
            table=tables.figures(results.of("keys")),
            missing=without,
        ),
        _nodes(inputs),
        Section(
            "Expanding under load",
            "Shards are added while one process pushes 1,000 tasks a second, one at a time, and another consumes them. "
            "The engine alone tells them of the change. 0 s is the call of resize().",
            plots.expand(results),
            details={every: tables.figures(results.of("expand"))},
            missing=without,
        ),
        Section(
            "Fleets and idle engines",
            "A backlog is drained by 1, 20 and 200 consumers. An engine with nothing to do costs a little too.",
            table=tables.figures(results.of("fleet", "idle")),
            missing=without,
        ),
        Section(
            "Scripts as things grow",
            "These are counts of what the servers run, and no times: scripts for a task, from due to acknowledged, and "
            "commands for a minute in which nothing happens. Each task is claimed alone. One size changes at a time, "
            "around 10 consumers of 16 shards. Dead are names of processes that are gone, in each shard. A limited "
            "topic has a backlog, at 100 a second or one at once.",
            table=tables.scales(results),
            missing=without,
        ),
        _chaos(inputs),
        _soak(inputs),
        _method(inputs),
    ]


def _peers(inputs: Inputs) -> Section:
    section = Section(
        "Beside others",
        "All peers do the same work on the same server in the same run, each by its own best documented way. "
        "A figure that could not be measured is named with the reason.",
        missing="" if inputs.peers else PEERS,
    )
    if inputs.peers:
        section.plots = plots.peers(inputs.peers)
        section.table = tables.peers(inputs.peers)
        section.details = {
            "Versions, and how each was used": tables.usage(inputs.peers),
            "Where this was measured": tables.facts(inputs.peers.facts),
        }
    return section


def _oldest(inputs: Inputs) -> Section:
    section = Section(
        "On the oldest server",
        "The same programs ran on the oldest server that is supported. Lateness is shown as median / 99th percentile. "
        "The limits were measured on each server in the same run.",
        missing=OLDEST if inputs.oldest is None else RESULTS if inputs.results is None else "",
    )
    if inputs.results is not None and inputs.oldest is not None:
        both = inputs.results, inputs.oldest
        section.table = tables.servers(*both, "push", "dispatch", "burst", "consume", "lateness")
        section.details = {
            "More of them": tables.servers(*both, "sizes", "memory", "backlog", "expand", "idle"),
            "Where this was measured": tables.facts(inputs.oldest.facts),
        }
    return section


def _nodes(inputs: Inputs) -> Section:
    section = Section(
        "Cost against nodes",
        "A machine with few cores can’t show many masters at full speed. It can show whether a task costs the same "
        "however many masters there are. Rates of larger clusters are calculated from that cost, and drawn dashed.",
        missing="" if inputs.nodes else NODES,
    )
    if found := inputs.nodes:
        section.plots = [*plots.nodes(found), *plots.nodes_over_time(found)]
        section.table = tables.nodes(found)
        section.details = {
            what: tables.named(numbers(told))
            for what, told in (("The failover in figures", found.failover), ("The expansion in figures", found.expand))
            if told
        }
        if found.model is not None:
            section.text += f" {found.model.meaning}"
        section.details["Where this was measured"] = tables.facts(found.facts)
    return section


def _chaos(inputs: Inputs) -> Section:
    section = Section(
        "Broken on purpose",
        "Programs push, handle, cancel, forward, schedule and resize, on one server with an append-only file, on "
        "Sentinel, and on a cluster with replicas, while servers and programs are killed, stopped, cut off, filled up "
        "and promoted. Then all is mended and handled, and a sequential model judges each call of each task.",
        missing="" if inputs.chaos else CHAOS,
    )
    if found := inputs.chaos:
        section.table = breaking.outcome(found)
        section.details = {
            "Faults by kind": breaking.faults(found),
            "What was answered": breaking.counted(found.outcomes, "call and answer"),
            "Errors that programs met": breaking.counted(found.errors, "error"),
            "Faults that were left out": breaking.counted(found.left_out, "fault: reason"),
            "Where this was run": tables.facts(found.facts),
        }
    return section


def _soak(inputs: Inputs) -> Section:
    section = Section("Hours of it", "", missing="" if inputs.soak else SOAK)
    if found := inputs.soak:
        section.text = (
            f"The same programs ran for {found.seconds / 3600:.1f} hours under a steady load of {found.per_s:,.0f} "
            f"bulk tasks a second and some of each other kind, {found.tasks:,} tasks in all. Growth is the median "
            f"slope between any two samples, from {found.warm_up_s / 60:.0f} minutes on; beyond its bound, a leak. "
            "The process that takes the samples keeps them all, and grows by them (this process, where it is listed)."
        )
        section.plots = breaking.soaked(found)
        section.table = breaking.flat(found)
        section.details = {"Where this was run": tables.facts(found.facts)}
    return section


def _method(inputs: Inputs) -> Section:
    section = Section(
        "How this was measured",
        "Servers and clients are pinned to cores of their own where the machine has two or more. Each suite has fresh "
        "servers without persistence, on loopback. A rate and its limit are measured in turns, three rounds, and the "
        "median counts. Absolute figures are those of this machine; ratios carry over to another better than rates. "
        "The client is one process of CPython. The neighbours of a virtual machine are not visible: figures of two "
        "runs easily differ by 10 %, and the longest pause by more.",
        missing="" if inputs.results else RESULTS,
    )
    if results := inputs.results:
        section.table = tables.facts(results.facts)
        suites = [[escape(name), *map(escape, told.values())] for name, told in results.suites.items()]
        heads = ("suite", *next(iter(results.suites.values()), {}))
        section.details = {"When each suite was measured": tables.table(heads, suites)} if suites else {}
        if not results.complete:
            section.text += " This run was not completed: some suites are missing."
    return section


def tiles(inputs: Inputs) -> list[tuple[str, str]]:
    """Returns the figures at the top of the page, each with its meaning."""
    if inputs.results is None:
        return []
    results = inputs.results
    many, ids = results.first("push", "push_many"), results.first("dispatch", "dispatch of")
    told = [
        (plots.tile(many), "tasks/s pushed by one process"),
        (plots.tile(ids), "due tasks/s made ready"),
        (plots.tile(results.first("lateness", "due → ready"), share="p99") + " ms", "p99 from due to ready, idle"),
        (plots.tile(results.first("burst", "1,000,000")) + " s", "until the last of 1,000,000 due at once is ready"),
        (plots.tile(results.first("memory", "memory, 12,500")) + " B", "memory per pending task of 100 B"),
    ]
    return [(figure, what) for figure, what in told if not figure.startswith("–")]


def page(inputs: Inputs, shown: Sequence[Section]) -> str:
    facts = inputs.results.facts if inputs.results else {}
    about = "; ".join(
        escape(facts[name]) for name in ("machine", "server", "python", "commit", "when") if name in facts
    )
    first = "".join(f'<div class="tile"><b>{figure}</b><span>{what}</span></div>' for figure, what in tiles(inputs))
    body = "\n".join(map(_section, shown))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>shardq: what it does on this machine</title>
<style>{STYLE}{_PAGE_STYLE}</style>
</head>
<body>
<main>
<h1>shardq: fast, and late by how much</h1>
<p class="soft">{about}</p>
<div class="tiles">{first}</div>
{body}
</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.title)}</h2>", f"<p>{escape(section.text)}</p>"]
    if section.missing:
        parts.append(
            f'<p class="soft">This section is empty, because {section.missing} is missing. Make it with '
            f"<code>{escape(MAKING[section.missing])}</code></p>"
        )
        return "\n".join(parts)
    for plot in section.plots:
        caption = f"<figcaption>{escape(plot.caption)}</figcaption>" if plot.caption else ""
        parts.append(f'<figure><h3>{escape(plot.title)}</h3><div class="scroll">{plot.svg}</div>{caption}</figure>')
    if not (section.plots or section.table or any(section.details.values())):
        parts.append('<p class="soft">Not measured in the run that this report shows.</p>')
    parts.append(section.table)
    parts += [f"<details><summary>{escape(what)}</summary>{table}</details>" for what, table in section.details.items()]
    return "\n".join(parts)
