"""Finds the worker that MODULE:WORKER names, and says in the user's words why it can't be had. Called by ``work``."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, cast

from shardq import Engine
from shardq.cli.output import complain
from shardq.engine.around import EngineBase
from shardq.errors import BadInput, ShardqError
from shardq.worker import NamedTask, Worker
from shardq.worker.base import WorkerBase, choose_topics, engine_of, plan_of

if TYPE_CHECKING:
    from shardq import AsyncEngine
    from shardq.worker import AsyncWorker

ANY = (WorkerBase, EngineBase)

LIKE = "write MODULE:WORKER, such as shopapp:worker"


class LoadFailed(ShardqError):
    """The user's module, or factory, failed. Its traceback is printed."""

    def __init__(self, text: str, files: Iterable[str]) -> None:
        super().__init__(text)
        self.files: frozenset[str] = frozenset(files)
        """The files in which it failed."""


@dataclass(frozen=True, slots=True)
class Target:
    module: str
    path: str
    """The attribute, or several with dots between them."""

    @classmethod
    def parsed(cls, text: str) -> Target:
        """
        >>> Target.parsed("shop.app:worker")
        Target(module='shop.app', path='worker')
        """
        module, colon, path = text.partition(":")
        if module.endswith(".py") or os.sep in module:
            dotted = module.removesuffix(".py").strip("./").replace(os.sep, ".")
            raise BadInput(f"{module!r} is a file; give the name of its module: {dotted}:{path or 'worker'}")
        if not colon or not path:
            raise BadInput(f"{text!r} names no worker; {LIKE}")
        if not all(word.isidentifier() for word in (*module.split("."), *path.split("."))):
            raise BadInput(f"{text!r} can't be a module and its worker; {LIKE}")
        return cls(module, path)

    def __str__(self) -> str:
        return f"{self.module}:{self.path}"

    def look(self) -> None:
        """Raises BadInput where there is no such module, as far as that is known without importing anything."""
        _look_here()
        top = self.module.partition(".")[0]
        if top not in sys.modules and find_spec(top) is None:
            raise _no_module(top)

    def load(self, *, topics: list[str] | None = None, concurrency: int | None = None) -> Worker | AsyncWorker:
        """Imports the module and returns its worker, with these topics and this concurrency."""
        worker = self._worker(self._found(self._module()))
        if concurrency is not None:
            worker.concurrency = concurrency
        plan_of(worker)  # which says what is wrong with it, before any process is started
        if topics is not None:
            choose_topics(worker, topics)
        return worker

    def _module(self) -> ModuleType:
        _look_here()
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as exc:
            if exc.name is not None and f"{self.module}.".startswith(f"{exc.name}."):
                raise _no_module(exc.name) from None
            raise _failed(f"the module {self.module!r} could not be imported", exc) from None
        except (Exception, SystemExit) as exc:  # noqa: BLE001  the user's code, and the user is told
            raise _failed(f"the module {self.module!r} could not be imported", exc) from None

    def _found(self, module: ModuleType) -> Any:
        value: Any = module
        for word in self.path.split("."):
            try:
                value = getattr(value, word)
            except AttributeError:
                raise BadInput(f"{self.module!r} has no {self.path!r}; {_those_of(module)}") from None
        return value

    def _worker(self, value: Any) -> Worker | AsyncWorker:
        if not isinstance(value, ANY) and callable(value) and not isinstance(value, NamedTask):
            value = self._made(value)
        if isinstance(value, EngineBase):
            if not value._tasks.handlers:
                raise BadInput(f"the engine {self} has no tasks: declare functions with @{self.path}.task")
            return cast("Engine | AsyncEngine", value).worker()
        if isinstance(value, WorkerBase):
            return cast("Worker | AsyncWorker", value)
        what = "a task, which a worker runs" if isinstance(value, NamedTask) else f"of type {type(value).__name__}"
        raise BadInput(
            f"{self} is {what}; give a worker, an engine with tasks, or a function without arguments that returns one; "
            f"{_those_of(sys.modules[self.module])}"
        )

    def _made(self, factory: Any) -> Any:
        try:
            inspect.signature(factory).bind()
        except (TypeError, ValueError):
            raise BadInput(
                f"{self} needs arguments; a function that returns a worker must be callable with none"
            ) from None
        try:
            made = factory()
        except (Exception, SystemExit) as exc:  # noqa: BLE001  the user's code, and the user is told
            raise _failed(f"{self} failed", exc) from None
        if inspect.iscoroutine(made):
            made.close()
            raise BadInput(f"{self} is a coroutine function; give a function that returns a worker")
        return made


def engine_behind(worker: Worker | AsyncWorker) -> Engine | AsyncEngine:
    """The engine of a worker."""
    engine = engine_of(worker)
    assert isinstance(engine, EngineBase), "engine.worker() made it"
    return cast("Engine | AsyncEngine", engine)


def _look_here() -> None:
    """Finds modules in the current directory, as ``python -m`` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _no_module(name: str) -> BadInput:
    here = Path.cwd()
    names = [path.stem for path in here.glob("*.py")] + [path.parent.name for path in here.glob("*/__init__.py")]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "; start in the directory that holds it, or install it"
    return BadInput(f"there is no module {name!r} in {here}, and none is installed{hint}")


def _those_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, ANY)]
    if not names:
        return f"{module.__name__!r} has no worker and no engine"
    return f"{module.__name__!r} has {', '.join(names)}"


def _failed(what: str, exc: BaseException) -> LoadFailed:
    trace = _theirs(exc.__traceback__)
    complain("".join(traceback.format_exception(type(exc), exc, trace)).rstrip())
    files = {frame.f_code.co_filename for frame, _ in traceback.walk_tb(trace)}
    if isinstance(exc, SyntaxError) and exc.filename:
        files.add(exc.filename)
    return LoadFailed(f"{what}: {type(exc).__name__}", files)


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the user's code: without ours, and without that of the import."""
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in (__file__, importlib.__file__)
        or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        trace = trace.tb_next
    return trace
