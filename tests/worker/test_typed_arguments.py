"""Arguments and payloads are what their annotations say. One that does not fit is a failed attempt, which names the
field.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import functools
import logging
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from shardq import Backoff, Delivery, Engine
from shardq.core.model.record import JSON, MSGPACK, RAW, decode_record, encode_record
from shardq.errors import InvalidOption, PayloadNotDecodable, PayloadNotEncodable
from shardq.worker.functions import Arguments, calling
from shardq.worker.named import call_of
from tests.support.engines import Engines
from tests.support.states import state_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections import OrderedDict as Later

P = ParamSpec("P")
R = TypeVar("R")

AT_ONCE = Backoff(base=0.01, cap=0.02)
MOMENT = dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    LARGE = 3


@dataclasses.dataclass
class Item:
    price: decimal.Decimal
    tags: set[str] = dataclasses.field(default_factory=set)


class Parcel(msgspec.Struct):
    to: str
    items: list[Item]
    sent: dt.datetime | None = None


class Note(TypedDict):
    when: dt.date


class Point(NamedTuple):
    x: int
    y: int


class Address(pydantic.BaseModel):
    street: str
    since: dt.date


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    id: uuid.UUID
    at: dt.datetime
    customer_name: str = pydantic.Field(alias="customerName")
    addresses: tuple[Address, ...] = ()

    @pydantic.computed_field
    def initial(self) -> str:
        return self.customer_name[:1]


ORDER = Order(id=uuid.UUID(int=5), at=MOMENT, customerName="Ann", addresses=(Address(street="a", since=MOMENT.date()),))

FITTING: list[tuple[Any, Any]] = [
    (str, "text"),
    (int, 5),
    (float, 5.5),
    (bool, True),
    (dt.datetime, MOMENT),
    (dt.datetime, MOMENT.replace(tzinfo=None)),
    (dt.date, MOMENT.date()),
    (dt.time, MOMENT.time()),
    (dt.timedelta, dt.timedelta(hours=1.5)),
    (uuid.UUID, uuid.UUID(int=7)),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (Colour, Colour.RED),
    (Size, Size.LARGE),
    (Literal["a", "b"], "b"),
    (bytes, b"\0\xff"),
    (Item, Item(decimal.Decimal("0.30"), {"a", "b"})),
    (Parcel, Parcel("ann", [Item(decimal.Decimal(1))], MOMENT)),
    (Note, {"when": MOMENT.date()}),
    (Point, Point(1, 2)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (tuple[dt.date, ...], (MOMENT.date(),)),
    (list[uuid.UUID], [uuid.UUID(int=7)]),
    (dict[int, dt.datetime], {1: MOMENT}),
    (dict[uuid.UUID, Item], {uuid.UUID(int=7): Item(decimal.Decimal(1))}),
    (Sequence[Colour], [Colour.RED]),
    (Mapping[str, Size], {"a": Size.LARGE}),
    (Iterable[str], ["a"]),
    (dt.datetime | None, MOMENT),
    (dt.datetime | None, None),
    (int | str | None, "a"),
    (Annotated[int, msgspec.Meta(ge=1)], 1),
    (Any, [1, "a"]),
    (object, [1, "a"]),
    (Order, ORDER),
    (Order | None, None),
    (list[Order], [ORDER]),
]


def received(codec: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the function with what a worker gets when this is pushed."""
    payload = decode_record(encode_record(codec, call_of("send", *args, **kwargs))).payload
    delivery = Delivery("id", "", payload, 1, {}, "token", 0, 0, 0)
    return calling(function, Arguments(function, "send"), "send")(delivery)


@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=lambda codec: codec.name)
@pytest.mark.parametrize(("type", "value"), FITTING, ids=[f"{place} {each[0]}" for place, each in enumerate(FITTING)])
def test_what_is_pushed_is_what_arrives(codec: Any, type: Any, value: Any) -> None:
    def send(first: Any, /, second: Any, *rest: Any, third: Any, **more: Any) -> Any:
        return first, second, rest, third, more

    send.__annotations__ = dict.fromkeys(("first", "second", "rest", "third", "more"), type)
    expected = (value, value, (value, value), value, {"fourth": value})
    found = received(codec, send, value, value, value, value, third=value, fourth=value)
    assert found == expected
    # not of another type that is equal, by any path
    assert {each.__class__ for each in (*found[:2], *found[2], found[3])} == {value.__class__}


def test_an_int_for_a_float() -> None:
    def send(share: float) -> Any:
        return repr(share)

    assert received(JSON, send, 5) == "5.0"


MISFITS: list[tuple[Any, Any, str]] = [
    (str, 5, "to: expected str, got int"),
    (int, "5", "to: expected int, got str"),
    (int, True, "to: expected int, got bool"),
    (dt.datetime, "tomorrow", "to: invalid RFC3339 encoded datetime"),
    (uuid.UUID, "x", "to: invalid UUID"),
    (Colour, "blue", "to: invalid enum value"),
    (list[int], [1, "x"], "to[1]: expected int, got str"),
    (dict[int, str], {"x": "a"}, "a key of to: expected int, got str"),
    (Item, {"tags": []}, "to.price: is missing"),
    (Parcel, {"to": "ann", "items": [{"price": "1"}, {"price": "dear"}]}, "to.items[1].price: invalid decimal string"),
    (Item | None, "x", "to: expected object | null, got str"),
    (Order, {"id": str(uuid.UUID(int=5)), "at": 5, "customerName": 7}, "to.at: input should be "),
    (Order, {"id": str(uuid.UUID(int=5)), "at": 5, "customerName": 7}, "to.customerName: input should be a valid "),
    (list[Address], [{"street": "a"}], "to[0].since: field required"),
    (Address, "x", "to: input should be an object"),
    (complex, "1j", "to: expected complex, got str"),
]


@pytest.mark.parametrize(("type", "value", "text"), MISFITS, ids=[each[2] for each in MISFITS])
def test_what_does_not_fit_is_named(type: Any, value: Any, text: str) -> None:
    def send(to: Any) -> None: ...

    send.__annotations__["to"] = type
    for args, kwargs in (((value,), {}), ((), {"to": value})):
        with pytest.raises(PayloadNotDecodable) as caught:
            received(JSON, send, *args, **kwargs)
        assert text in str(caught.value)
        told = "".join(traceback.format_exception(caught.value)).splitlines()[-1]
        assert not [word for word in ("blue", "tomorrow", "dear", "1j") if word in told]
        assert "input_value" not in "".join(traceback.format_exception(caught.value))
        assert str(caught.value).startswith("send does not take this payload: ")


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_push_checks_them_by_the_rules_of_the_worker(codec: str) -> None:
    """Before anything is sent, and with the same words."""
    engine = Engine("redis://127.0.0.1:1", name="typed", timeout=0.1, codec=codec)

    def send(to: Any, *rest: Any, more: Any = None) -> None: ...

    for number, (type, value, text) in enumerate(MISFITS):
        send.__annotations__ = dict.fromkeys(("to", "rest", "more"), type)
        task = engine.task(name=f"send-{number}", topic="mail")(send)
        with pytest.raises(InvalidOption) as caught:
            task.push(value)
        assert str(caught.value).startswith(f"send-{number} can't be pushed with these arguments: ")
        assert text in str(caught.value)
    for number, (type, value) in enumerate(FITTING, len(MISFITS)):
        send.__annotations__ = dict.fromkeys(("to", "rest", "more"), type)
        task = engine.task(name=f"send-{number}", topic="mail")(send)
        assert task.call(value, value, more=value).payload == call_of(task.name, value, value, more=value)


def test_a_push_leaves_what_another_codec_encodes_to_the_worker() -> None:
    class Own:
        name = "own"

        def encode(self, payload: Any) -> bytes:
            return b""

        def decode(self, data: bytes) -> Any: ...

    engine = Engine("redis://127.0.0.1:1", name="typed", codec=Own())

    @engine.task(name="send")
    def send(to: str) -> None: ...

    wrong: Any = 5
    assert send.call(wrong).payload == call_of("send", 5)


def test_a_wrong_number_of_arguments_is_left_to_the_call() -> None:
    def send(to: str, at: dt.datetime = MOMENT) -> None: ...

    for args, kwargs in (((), {}), (("a", MOMENT, 5), {}), (("a",), {"to": "b"}), (("a",), {"other": 5})):
        with pytest.raises(TypeError, match=r"send\(\)"):
            received(JSON, send, *args, **kwargs)


def test_what_is_not_annotated_is_as_the_codec_gives_it() -> None:
    def send(to, at=None, *rest, **more):  # type: ignore[no-untyped-def]  # that is the point
        return to, at, rest, more

    assert received(JSON, send, MOMENT, MOMENT, (1, 2), a={3}) == (
        "2030-01-02T03:04:05Z",
        "2030-01-02T03:04:05Z",
        ([1, 2],),
        {"a": [3]},
    )


def test_an_object_that_a_codec_of_ones_own_gives_is_taken_as_it_is() -> None:
    def send(order: Order, item: Item, parcel: Parcel, path: complex, at: dt.datetime) -> Any:
        return order, item, parcel, path, at

    given = (ORDER, Item(decimal.Decimal(1)), Parcel("a", []), 1j, MOMENT)
    delivery = Delivery("id", "", call_of("send", *given), 1, {}, "token", 0, 0, 0)
    found = calling(send, Arguments(send, "send"), "send")(delivery)
    assert all(a is b for a, b in zip(found, given, strict=True))


# ---- functions of all sorts


def noting(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return wrapper


def with_database(function: Callable[..., R]) -> Callable[..., R]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> R:
        return function(Item(decimal.Decimal(5)), *args, **kwargs)

    return wrapper


class Sender:
    def __call__(self, at: dt.datetime) -> Any:
        return at

    def send(self, at: dt.datetime) -> Any:
        return at


def at(at: dt.datetime) -> Any:
    return at


def without_names(function: Callable[P, R]) -> Callable[P, R]:
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return wrapper


async def coroutine(at: dt.datetime) -> Any:
    return at


@pytest.mark.parametrize(
    "function",
    [at, noting(at), noting(noting(at)), Sender(), Sender().send, functools.partial(at, at=MOMENT)],
    ids=["function", "decorated", "twice", "callable", "method", "partial"],
)
def test_functions_of_all_sorts(function: Any) -> None:
    assert received(JSON, function, at=MOMENT) == MOMENT
    with pytest.raises(PayloadNotDecodable, match="at: expected datetime, got int"):
        received(JSON, function, at=5)


def test_a_decorator_that_gives_an_argument_of_its_own() -> None:
    """Whose wrapper takes anything: a call that does not bind to the function is left to it."""

    @with_database
    def send(database: Item, to: str) -> Any:
        return database, to

    assert received(JSON, send, "ann") == (Item(decimal.Decimal(5)), "ann")
    assert received(JSON, without_names(at), MOMENT) == "2030-01-02T03:04:05Z"
    assert received(JSON, print, "a") is None
    assert received(JSON, dict, a=5) == {"a": 5}
    assert received(JSON, str.upper, "a") == "A"


def test_a_dataclass_as_the_function() -> None:
    assert received(JSON, Item, decimal.Decimal(5)) == Item(decimal.Decimal(5))


# ---- annotations that can't be


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (dt.datetime | str, "Type unions may not contain more than one str-like type"),
        (Order | int, "Type unions containing a custom type may not contain any additional types"),
        (Item | Parcel, "Type unions may not contain more than one dict-like type"),
        (5, "Type '5' is not supported"),
    ],
    ids=str,
)
def test_a_type_that_can_not_be_decoded_is_refused_at_the_decoration(
    engines: Engines, url: str, name: str, type: Any, text: str
) -> None:
    def send(to: Any) -> None: ...

    send.__annotations__["to"] = type
    engine = engines.make(url, name=name)
    with pytest.raises(InvalidOption) as caught:
        engine.task(name="shop.send")(send)
    assert "the parameter 'to' of shop.send can't be annotated with " in str(caught.value)
    assert text in str(caught.value)
    assert str(caught.value).endswith("or leave the annotation out")


def test_a_name_that_is_defined_later(engines: Engines, running: Engine) -> None:
    """The decorator can't read it yet; the worker's start can."""

    def send(to: Any) -> None:
        seen.append(to)

    send.__annotations__["to"] = "Afterwards"
    seen: list[Any] = []
    task = running.task(name="shop.send", topic="t")(send)
    worker = running.worker()
    with pytest.raises(InvalidOption, match=r"the annotations of shop.send can't be read: name 'Afterwards' "):
        engines.ran(worker)
    globals()["Afterwards"] = Item
    try:
        with engines.working(worker):
            engines.done(task.push(Item(decimal.Decimal(5))))
            wait_until(lambda: seen == [Item(decimal.Decimal(5))], "it is decoded")
    finally:
        del globals()["Afterwards"]


def test_a_name_for_type_checkers_alone_is_an_error_where_it_is_served(engines: Engines, url: str, name: str) -> None:
    engine = engines.make(url, name=name)

    @engine.task(name="shop.send")
    def send(to: Later[str, int]) -> None: ...

    with pytest.raises(InvalidOption, match="define or import the name in its module, and not for type checkers alone"):
        engines.ran(engine.worker())


def test_the_type_of_the_result_is_nobodys_business(engines: Engines, url: str, name: str) -> None:
    engine = engines.make(url, name=name)

    def send(to: dt.datetime) -> Later[str, int]: ...  # type: ignore[empty-body]  # it is never called

    assert received(JSON, noting(send), MOMENT) is None
    engine.task(name="shop.send")(send)


# ---- through a worker


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_through_a_worker(engines: Engines, url: str, name: str, codec: str) -> None:
    engine = engines.opened(url, name=name, shards=2, codec=codec)
    engine.start()
    seen: dict[str, Any] = {}
    worker = engine.worker()

    @engine.task(topic="mail", name="send")
    def send(order: Order, *, at: dt.datetime, colours: set[Colour] | None = None) -> None:
        seen["send"] = order, at, colours

    @engine.task(topic="mail", name="ship")
    async def ship(parcel: Parcel, price: decimal.Decimal = decimal.Decimal(0)) -> None:
        seen["ship"] = parcel, price

    worker.on("order", type=Order)(lambda delivery: seen.update(order=delivery.payload))
    worker.on("items", type=list[Item])(lambda delivery: seen.update(items=delivery.payload))
    worker.on("plain")(lambda delivery: seen.update(plain=delivery.payload))
    parcel = Parcel("ann", [Item(decimal.Decimal("0.30"), {"a"})], MOMENT)
    with engines.working(worker):
        engines.done(send.push(ORDER, at=MOMENT, colours={Colour.RED}))
        engines.done(ship.push(parcel, decimal.Decimal("1.10")))
        engine.push(ORDER, topic="order")
        engine.push(parcel.items, topic="items")
        engine.push({"id": uuid.UUID(int=5), "order": ORDER}, topic="plain")
        wait_until(lambda: len(seen) == 5, "all are handled")
    assert seen == {
        "send": (ORDER, MOMENT, {Colour.RED}),
        "ship": (parcel, decimal.Decimal("1.10")),
        "order": ORDER,
        "items": parcel.items,
        "plain": {"id": str(uuid.UUID(int=5)), "order": ORDER.model_dump(mode="json", by_alias=True, round_trip=True)},
    }


def test_what_does_not_fit_is_a_failed_attempt(
    engines: Engines, running: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """With the backoff of the function; in the end it is dead, with the name of the field."""
    handled: list[Any] = []
    hooked: list[str] = []

    class Log:
        def error(self, delivery: Delivery, exc: BaseException) -> None:
            hooked.append(type(exc).__name__)

    def send(to: str) -> None:
        handled.append(to)

    async def send_later(to: str) -> None:
        handled.append(to)

    for each in (send, send_later):
        running.task(topic="mail", name=each.__name__, backoff=AT_ONCE)(each)
    worker = running.worker(max_attempts=3)
    worker.use(Log())
    worker.on("parcel", type=Parcel, backoff=AT_ONCE)(handled.append)
    with caplog.at_level(logging.ERROR, logger="shardq.worker"), engines.working(worker):
        ids = [
            running.push({"task": "send", "args": [5], "kwargs": {}}, topic="mail"),
            running.push({"task": "send_later", "args": [], "kwargs": {"to": 5}}, topic="mail"),
            running.push({"to": 5, "items": []}, topic="parcel"),
        ]
        wait_until(lambda: {state_of(running, id) for id in ids} == {"dead"}, "all are dead", timeout=30)
    assert handled == []
    assert hooked == ["PayloadNotDecodable"] * 9
    for id in ids:
        task = running.get(id)
        assert task is not None
        assert task.failures == 3
        assert str(task.reason).endswith("does not take this payload: to: expected str, got int")


def test_what_can_not_be_encoded_is_refused_before_anything_is_sent(engines: Engines) -> None:
    engine = engines.make("redis://127.0.0.1:1", name="typed", timeout=0.1)

    @engine.task(name="send")
    def send(to: complex) -> None: ...

    with pytest.raises(PayloadNotEncodable, match="Encoding objects of type complex is unsupported"):
        engines.done(send.push(5j))
    with pytest.raises(PayloadNotEncodable):
        encode_record(RAW, ORDER)


def test_pydantic_is_not_imported() -> None:
    program = "import sys, shardq; shardq.Engine().task(sorted); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
