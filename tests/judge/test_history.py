"""A book says the same from its file as in memory, also after its process was killed."""

from __future__ import annotations

import math
from pathlib import Path

from tests.judge.history import Book, Call, read
from tests.judge.model import Op


def kept(book: Book) -> None:
    push = book.begin(
        Call("p", "push", 1.0, ops=[("", Op("push", 1.0, number=7, durable=True)), ("a", Op("push", 1.0))])
    )
    claim = book.begin(Call("p", "claim", 2.0))
    book.end(push, 3.0, outcomes=["pushed", ""], ids=["x", "a"])
    book.end(claim, 4.0, given=[("x", Op("claim", 2.0, number=7))], outcomes=["given"])
    failed = book.begin(Call("p", "push", 5.0, ops=[("b", Op("push", 5.0, durable=True))]))
    book.end(failed, 6.0, error="NotReplicated", outcomes=["applied"])
    book.begin(Call("p", "get", 7.0, ops=[("b", Op("get", 7.0))]))


def test_a_file_has_what_the_memory_has(tmp_path: Path) -> None:
    here, file = Book(), Book(tmp_path / "book")
    kept(here)
    kept(file)
    file.close()
    assert read(tmp_path / "book") == here.calls
    assert file.calls == []
    push, claim, failed, left = here.calls
    assert [id for id, _ in push.ops] == ["x", "a"]
    assert [op.end_us for _, op in push.ops] == [3.0, math.inf]
    assert claim.ops[0][1].outcome == "given"
    assert not failed.ops[0][1].durable  # it was stored, and its error says that nothing has confirmed it
    assert not left.is_over


def test_a_record_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    file = Book(tmp_path / "book")
    kept(file)
    file.close()
    whole = (tmp_path / "book").read_bytes()
    (tmp_path / "book").write_bytes(whole[:-3])
    assert len(read(tmp_path / "book")) == 3


class Told(str):
    """An id that says more, as receipts do."""


def test_ids_of_receipts_are_written_as_text(tmp_path: Path) -> None:
    file = Book(tmp_path / "book")
    push = file.begin(Call("p", "push", 1.0, ops=[("", Op("push", 1.0))]))
    file.end(push, 2.0, outcomes=["pushed"], ids=[Told("x")])
    (call,) = read(tmp_path / "book")
    assert [id for id, _ in call.ops] == ["x"]
