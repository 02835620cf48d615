"""What commands go through is put together when the engine is made: none of them asks which features there are."""

from __future__ import annotations

import inspect
import re
from types import FunctionType

import pytest

from shardq.engine.operator_aio import AsyncOperatorCommands
from shardq.engine.operator_sync import OperatorCommands
from shardq.engine.tasks_aio import AsyncTaskCommands
from shardq.engine.tasks_sync import TaskCommands

MAKES_IT = {"_chain", "_trace_by"}


@pytest.mark.parametrize("kind", [TaskCommands, OperatorCommands, AsyncTaskCommands, AsyncOperatorCommands])
def test_no_command_asks_for_a_feature(kind: type) -> None:
    methods = {name: each for name, each in vars(kind).items() if isinstance(each, FunctionType)}
    asking = [name for name, each in methods.items() if re.search(r"\._(spool|far|tracing)\b", inspect.getsource(each))]
    assert set(asking) <= MAKES_IT
