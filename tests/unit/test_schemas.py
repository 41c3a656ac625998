"""Bytes of an old declaration are read by a new one, or the new one is refused; nothing in between."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.schemas import Unreadable, changes, describe, together


class Click(msgspec.Struct):
    user: str
    at: int


class WithDefault(msgspec.Struct):
    user: str
    at: float
    page: str = "/"


class WithoutDefault(msgspec.Struct):
    user: str
    at: int
    page: str


class Fewer(msgspec.Struct):
    user: str


class Tagged(msgspec.Struct, tag=True):
    user: str
    at: int


class Row(msgspec.Struct, array_like=True):
    user: str
    at: int


class RowMore(msgspec.Struct, array_like=True):
    user: str
    at: int
    page: str = "/"


class RowTurned(msgspec.Struct, array_like=True):
    user: str
    page: str = "/"
    at: int = 0


class Omits(msgspec.Struct, omit_defaults=True):
    size: int = 5


class OmitsOther(msgspec.Struct, omit_defaults=True):
    size: int = 7


class WritesOther(msgspec.Struct):
    size: int = 7


@dataclass
class Plain:
    user: str
    at: int
    tags: list[str] = field(default_factory=list)


class Dict(TypedDict):
    user: str
    at: int
    page: NotRequired[str]


class Tree(msgspec.Struct):
    value: int
    children: list[Tree] = []


class TreeOfFloats(msgspec.Struct):
    value: float
    children: list[TreeOfFloats] = []


class TreeOfTexts(msgspec.Struct):
    value: str
    children: list[TreeOfTexts] = []


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


READABLE: list[tuple[Any, Any, list[str] | None]] = [
    (int, int, []),
    (int, float, ["int became float"]),
    (int, float | None, ["int became float", "may also be None"]),
    (int, Any, ["int became any value"]),
    (int | None, float | None, ["int became float"]),
    (str, str | None, ["may also be None"]),
    (list[int], list[float], ["field '[…]': int became float"]),
    (dict[str, int], dict[str, int | None], ["field '[…]': may also be None"]),
    (list[int], tuple[int, ...], []),
    (Literal["small"], Size, ["may also be 'large'"]),
    (Size, str, ["one of 'large', 'small' became str"]),
    (Literal[1, 2], float, None),
    (Annotated[int, msgspec.Meta(ge=5)], Annotated[int, msgspec.Meta(ge=1)], []),
    (Annotated[int, msgspec.Meta(ge=5)], int, []),
    (Click, WithDefault, ["field 'at': int became float", "field 'page' was added, \"/\" where it is missing"]),
    (Click, Plain, ["field 'tags' was added, [] where it is missing"]),
    (Click, Dict, ["field 'page' was added, nothing where it is missing"]),
    (Row, RowMore, ["field 'page' was added, \"/\" where it is missing"]),
    (Tree, TreeOfFloats, ["field 'value': int became float"]),
    (tuple[int, str], tuple[float, str], ["field '[0]': int became float"]),
    (WritesOther, Omits, []),
]

REFUSED: list[tuple[Any, Any, str]] = [
    (float, int, "float became int"),
    (int, str, "int became str"),
    (int | None, int, "None became int"),
    (Any, int, "any value became int"),
    (set[int], list[int], "set became list"),
    (tuple[int, int], tuple[int, int, int], "a tuple of 2 became one of 3"),
    (int, Annotated[int, msgspec.Meta(ge=1)], "its ge was None, now 1"),
    (Annotated[str, msgspec.Meta(max_length=9)], Annotated[str, msgspec.Meta(max_length=5)], "max_length was 9, now 5"),
    (Size, Literal["small"], "'large' is no value of it any more"),
    (str, Size, "str became one of"),
    (Click, WithoutDefault, "field 'page' was added without a default"),
    (WithDefault, Click, "field 'page' was removed"),
    (WithDefault, WithoutDefault, "field 'at': float became int"),
    (Dict, WithoutDefault, "field 'page' has lost its default"),
    (Click, Fewer, "field 'at' was removed"),
    (Click, Tagged, "its tag"),
    (Click, Row, "its tag, or whether it is written as an array"),
    (Row, RowTurned, "new fields come last"),
    (Omits, OmitsOther, "its default was 5, now 7"),
    (Omits, WritesOther, "its default was 5, now 7"),
    (Tree, TreeOfTexts, "field 'value': int became str"),
    (list[Click], list[Fewer], r"field '\[…\].at' was removed"),
]


@pytest.mark.parametrize(("old", "new", "told"), READABLE)
def test_what_can_be_read_is_told(old: Any, new: Any, told: list[str] | None) -> None:
    if told is None:
        with pytest.raises(Unreadable):  # could be read, and nobody has needed it
            changes(describe(old), describe(new))
    else:
        assert changes(describe(old), describe(new)) == told


@pytest.mark.parametrize(("old", "new", "why"), REFUSED)
def test_what_may_not_be_readable_is_refused(old: Any, new: Any, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        changes(describe(old), describe(new))


def test_a_description_of_another_version_says_nothing() -> None:
    with pytest.raises(Unreadable, match="another version"):
        changes({**describe(int), "format": 99}, describe(int))


LEAVES: list[Any] = [int, float, str, bool, None, Literal["a", "b"], Literal["a"], Annotated[int, msgspec.Meta(ge=0)]]
VALUES = {
    int: st.integers(-9, 9), float: st.floats(-9, 9), str: st.text("ab", max_size=2), bool: st.booleans(),
    None: st.none(),
}  # fmt: skip


def types() -> st.SearchStrategy[Any]:
    leaf = st.sampled_from(LEAVES)
    fields = st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from([int, float, str, int | None]), st.booleans()),
                      max_size=3, unique_by=lambda field: field[0])  # fmt: skip
    structs = fields.map(lambda drawn: msgspec.defstruct("S", [
        (name, type_ | None, None) if default else (name, type_) for name, type_, default in sorted(drawn, key=lambda f: f[2])
    ]))  # fmt: skip

    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return inner.map(lambda type_: list[type_]) | inner.map(lambda type_: dict[str, type_])  # type: ignore[valid-type]

    return st.recursive(leaf | structs, around, max_leaves=3)


def values(type_: Any) -> st.SearchStrategy[Any]:
    """Values of a type that `types` makes, found by trying plain ones."""
    plain = st.recursive(
        st.none() | st.integers(-2, 2) | st.just(0.5) | st.booleans() | st.text("ab", max_size=1),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3)
        ),
        max_leaves=4,
    )

    def fits(value: Any) -> bool:
        try:
            msgspec.convert(value, type_)
        except msgspec.ValidationError:
            return False
        return True

    return plain.filter(fits).map(lambda value: msgspec.convert(value, type_))


@given(old=types(), new=types(), data=st.data())
def test_what_is_called_readable_is_read(old: Any, new: Any, data: st.DataObject) -> None:
    """Of any two types: either the new one is refused, or it decodes what is encoded of the old one, in both protocols."""
    try:
        changes(describe(old), describe(new))
    except Unreadable:
        return
    value = data.draw(st.from_type(type(None)) if old is None else values(old))
    for protocol in (msgspec.json, msgspec.msgpack):
        msgspec_bytes = protocol.encode(value)
        protocol.decode(msgspec_bytes, type=new)


class Twig(msgspec.Struct):
    twigs: list[Twig] = []


class LongTwig(msgspec.Struct):
    twigs: list[LongTwig] = []
    length: int = 1


def test_descriptions_together_are_compared_by_name_each_with_its_own_objects() -> None:
    old = together({"left": describe(Twig), "right": describe(int)})
    new = together({"left": describe(LongTwig), "right": describe(float)})
    assert old is not None
    assert new is not None
    assert changes(old, new) == [
        "field 'left.length' was added, 1 where it is missing",
        "field 'right': int became float",
    ]
    with pytest.raises(Unreadable, match=r"field 'left\.length' was removed"):
        changes(new, old)
    assert changes(old, old) == []
    assert together({"left": describe(int), "right": None}) is None
