"""Scrapes: what a registry, or an HTTP server, exports."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import shardq
from shardq import AsyncEngine, Engine

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    """Name and labels → value."""
    families = text_string_to_metric_families(text)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def registry_of(engine: Engine | AsyncEngine) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(shardq.metrics.collector(engine))
    return registry


def scraped(registry: CollectorRegistry) -> Samples:
    return parsed(generate_latest(registry).decode())


def total(samples: Samples, name: str, /, **labels: str) -> float:
    """The sum of the samples of that name that have these labels."""
    wanted = labels.items()
    return sum(value for (each, has), value in samples.items() if each == name and wanted <= has)


def got(url: str, method: str = "GET") -> tuple[int, str]:
    """Status and text of an answer; 0 if nobody answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()
    except OSError:
        return 0, ""
