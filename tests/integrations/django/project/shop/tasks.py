"""Tasks of every kind."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import django

import shardq
from tests.integrations.django.project.shop.models import Note

if django.VERSION >= (6, 0):
    from django.tasks import TaskContext, task
else:
    from django_tasks import TaskContext, task


@task
def add(first: int, second: int = 1) -> int:
    return first + second


@task(queue_name="mail", takes_context=True)
def tell(context: TaskContext[Any, Any], text: str) -> list[Any]:
    Note.objects.create(text=text)
    return [context.attempt, context.task_result.id]


@task
async def aadd(first: int, second: int = 1) -> int:
    await asyncio.sleep(0)
    await Note.objects.acreate(text="aadd")
    return first + second


@task(takes_context=True)
def fail_first(context: TaskContext[Any, Any]) -> str:
    if context.attempt == 1:
        raise shardq.Retry(delay=0.01, reason="not yet")
    return f"attempt {context.attempt}"


@task(takes_context=True)
def snooze_first(context: TaskContext[Any, Any], text: str) -> str:
    if not Note.objects.filter(text=text).exists():
        Note.objects.create(text=text)
        raise shardq.Snooze(0.01)
    return f"attempt {context.attempt}"


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
async def afail(text: str) -> None:
    raise ValueError(text)


@task
def bury() -> None:
    raise shardq.Bury("no such address")


@task
def unstorable() -> object:
    return object()


@task
def note(text: str) -> None:
    Note.objects.create(text=text)


@task
def slow(text: str, seconds: float) -> None:
    time.sleep(seconds)
    Note.objects.create(text=text)


@task
async def aslow(text: str, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await Note.objects.acreate(text=text)


@task
def hold(text: str) -> None:
    """Runs until there is a note that lets it go."""
    Note.objects.create(text=f"begun {text}")
    while not Note.objects.filter(text=f"go {text}").exists():
        time.sleep(0.01)
    Note.objects.create(text=text)


@task
async def ahold(text: str) -> None:
    await Note.objects.acreate(text=f"begun {text}")
    while not await Note.objects.filter(text=f"go {text}").aexists():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await Note.objects.acreate(text=text)
