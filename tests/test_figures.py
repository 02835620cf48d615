"""A figure is the same on every page: that of bench/report/figures.json, which ``make report`` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MEASURED: dict[str, float] = json.loads((ROOT / "bench/report/figures.json").read_text(encoding="utf-8"))
PAGES = {
    str(path.relative_to(ROOT)): re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    for path in [ROOT / "README.md", ROOT / "bench/README.md", *sorted((ROOT / "shardq").rglob("*.md"))]
}

N = r"([\d,.]*\d)"

QUOTED = {
    "push, tasks/s": [rf"`push`, one at a time \| {N}"],
    "push, µs of the server": [rf"a push alone; in a batch \| {N};", rf"which cost the server {N} µs each"],
    "push_many, tasks/s": [rf"`push_many`, one process, 100 B \| {N}", rf"`push_many`, `push_iter` \| {N}, "],
    "push_iter, tasks/s": [rf"`push_iter`, [a-z ]+ \| {N}", r"`push_many`, `push_iter` \| [\d,]+, ([\d,]+)"],
    "buffered pushes, tasks/s": [rf"buffered pushes from 8 threads \| {N}"],
    "made ready, tasks/s": [rf"due tasks made ready(?:, 16 shards)? \| {N}"],
    "forwarded, tasks/s": [rf"payloads put on a foreign list \| {N}"],
    "handled, tasks/s": [
        rf"a worker whose [a-z]+ do(?:es)? nothing(?:, one process)? \| {N}",
        rf"a no-op worker, one process \| {N}",
    ],
    "handler, idle, ms, p50": [rf"from due to the handler, idle \| p50 {N}"],
    "handler, idle, ms, p99": [rf"from due to the handler, idle \| p50 [\d.]+(?: ms)?, p99 {N}"],
    "bytes of a task": [
        rf"pending task of 100 B, everything included \| {N}",
        rf"pending task takes {N} bytes",
        rf"to {N} bytes of a task",
    ],
    "resize in force, s": [rf"in force after(?: \|)? {N} s"],
    "resize done, s": [rf"all (?:was )?moved after {N} s"],
    "resize, tasks/s": [rf"about {N} tasks/s beside 1,000", rf"moves some {N} tasks/s while"],
    "push in a resize, ms, p50": [rf"a push meanwhile (?:took|\| p50) {N}"],
    "push in a resize, ms, p99": [rf"a push meanwhile (?:took [\d.]+ ms \(p50\) and|\| p50 [\d.]+, p99) {N}"],
    "shardq: lateness_p50_ms": [rf"precision of due times \| milliseconds; p50 {N} ms"],
    "celery: lateness_p50_ms": [rf"timer of a worker; p50 {N} ms"],
    "rq: lateness_p50_ms": [rf"whole seconds, a look each second; p50 {N} ms"],
    "dramatiq: lateness_p50_ms": [rf"p50 {N} ms \| whole seconds, a look every 5 s"],
    "bullmq-node: lateness_p50_ms": [rf"milliseconds; p50 {N} ms \| a look every 5 s"],
}


def right(text: str, measured: float) -> bool:
    """True if the text is the figure, in as many digits as the text has.

    >>> right("57,000", 56838.0), right("1.0", 1.0098), right("1.1", 1.0098)
    (True, True, False)
    """
    digits = text.replace(",", "")
    places = len(digits.partition(".")[2]) or -(len(digits) - len(digits.rstrip("0")))
    return float(digits) == round(measured, places)


@pytest.mark.parametrize("name", QUOTED)
def test_a_figure_is_the_same_on_every_page(name: str) -> None:
    for pattern in QUOTED[name]:
        found = {page: re.findall(pattern, text) for page, text in PAGES.items()}
        assert any(found.values()), f"no page has: {pattern}"
        wrong = {page: texts for page, texts in found.items() if not all(right(each, MEASURED[name]) for each in texts)}
        assert wrong == {}, f"measured: {MEASURED[name]}"


def test_the_page_of_the_benches_has_the_table_of_the_report() -> None:
    table = (ROOT / "bench/report/table.md").read_text(encoding="utf-8")
    page = (ROOT / "bench/README.md").read_text(encoding="utf-8")
    assert [line for line in table.splitlines() if line.startswith("|") and line not in page] == []
    for peer, *rest in re.findall(rf"^\| ([a-z-]+) \| {N} \| {N} \| {N} \| {N} \| {N} \| {N} \|$", page, re.MULTILINE):
        rows = ("schedule_per_s", "drain_per_s", "lateness_p50_ms", "lateness_p99_ms", "bytes_per_task")
        for row, text in zip(rows, rest, strict=False):
            assert right(text, MEASURED[f"{peer}: {row}"]), (peer, row)
