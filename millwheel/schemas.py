"""What the bytes of a value look like, as plain data that a store remembers and a later version compares.

Lives here: `describe`, and `changes`, which says whether one declaration can read the bytes that another one wrote.  Never
here: values.  Invariant: what is readable stays readable over any number of steps.  So a description says of each field
whether a stored value may lack it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

SCHEMA_FORMAT: Final = 1
"""Version of a description; one of another version says nothing."""

Schema = Mapping[str, Any]
"""`format`, `root`, a node, and `objects`, what the nodes of kind "object" stand for, by number."""

_KINDS: Final[Mapping[type[inspect.Type], str]] = {
    inspect.AnyType: "any", inspect.RawType: "any", inspect.NoneType: "none", inspect.BoolType: "bool",
    inspect.IntType: "int", inspect.FloatType: "float", inspect.StrType: "str", inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes", inspect.MemoryViewType: "bytes", inspect.DateTimeType: "datetime",
    inspect.DateType: "date", inspect.TimeType: "time", inspect.TimeDeltaType: "timedelta",
    inspect.DecimalType: "decimal", inspect.UUIDType: "uuid", inspect.ExtType: "ext", inspect.ListType: "list",
    inspect.VarTupleType: "list", inspect.CollectionType: "list", inspect.SetType: "set", inspect.FrozenSetType: "set",
    inspect.TupleType: "tuple", inspect.DictType: "dict", inspect.FrozenDictType: "dict",
    inspect.EnumType: "values", inspect.LiteralType: "values", inspect.UnionType: "union",
}  # fmt: skip
_OBJECTS: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_AT_LEAST: Final = ("ge", "gt", "min_length")
_AT_MOST: Final = ("le", "lt", "max_length")
_EQUAL: Final = ("multiple_of", "pattern", "tz")


class Unreadable(Exception):
    """Bytes of the old declaration may not be readable by the new one; the message says where and why."""


def describe(type_: Any) -> Schema:
    """The description of what msgspec writes for a type."""
    objects: dict[str, Any] = {}
    root = _Describer(objects).node(inspect.type_info(type_))
    return {"format": SCHEMA_FORMAT, "root": root, "objects": objects}


def together(parts: Mapping[str, Schema | None]) -> Schema | None:
    """The description of something that holds values of other descriptions, by name; None when one of them is not known."""
    objects: dict[str, Any] = {}
    fields = []
    for name, part in parts.items():
        if part is None or part.get("format") != SCHEMA_FORMAT:
            return None
        objects |= {f"{name} {number}": _renumbered(made, name) for number, made in part["objects"].items()}
        fields.append({"name": name, "type": _renumbered(part["root"], name)})
    objects["all"] = {"positional": False, "tag": [None, None], "fields": fields}
    return {"format": SCHEMA_FORMAT, "root": {"kind": "object", "number": "all"}, "objects": objects}


def _renumbered(node: Any, name: str) -> Any:
    """A piece of a description whose objects have `name` before their numbers."""
    if isinstance(node, list):
        return [_renumbered(each, name) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: _renumbered(value, name) for key, value in node.items()}
    return found | ({"number": f"{name} {node['number']}"} if node.get("kind") == "object" else {})


class _Describer:
    """Walks a type once; a class that holds itself is a number the second time."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self._objects = objects
        self._numbers: dict[int, str] = {}

    def node(self, type_: inspect.Type) -> dict[str, Any]:
        if isinstance(type_, _OBJECTS):
            return {"kind": "object", "number": self._number(type_)}
        kind = _KINDS.get(type(type_))
        if kind is None:  # a type of the user's own: known by its name
            return {"kind": f"custom {getattr(type_, 'cls', type_)!r}"}
        found: dict[str, Any] = {"kind": kind}
        if isinstance(type_, inspect.EnumType | inspect.LiteralType):
            values = type_.values if isinstance(type_, inspect.LiteralType) else [member.value for member in type_.cls]
            found["values"] = sorted(values, key=repr)
        for name in (*_AT_LEAST, *_AT_MOST, *_EQUAL):
            if getattr(type_, name, None) is not None:
                found[name] = getattr(type_, name)
        parts = self._parts(type_)
        return found | ({"parts": parts} if parts else {})

    def _parts(self, type_: inspect.Type) -> list[Any]:
        if isinstance(type_, inspect.DictType | inspect.FrozenDictType):
            return [self.node(type_.key_type), self.node(type_.value_type)]
        if isinstance(type_, inspect.TupleType):
            return [*map(self.node, type_.item_types)]
        if isinstance(type_, inspect.UnionType):
            return [*map(self.node, type_.types)]
        item = getattr(type_, "item_type", None)
        return [] if item is None else [self.node(item)]

    def _number(self, type_: Any) -> str:
        number = self._numbers.get(id(type_))
        if number is None:
            number = self._numbers[id(type_)] = str(len(self._numbers))
            omits = isinstance(type_, inspect.StructType) and _origin(type_.cls).__struct_config__.omit_defaults
            self._objects[number] = {
                "positional": isinstance(type_, inspect.NamedTupleType) or bool(getattr(type_, "array_like", False)),
                "tag": [getattr(type_, "tag_field", None), getattr(type_, "tag", None)],
                "fields": [self._field(field, omits) for field in type_.fields],
            }
        return number

    def _field(self, field: inspect.Field, omits: bool) -> dict[str, Any]:
        found: dict[str, Any] = {"name": field.encode_name, "type": self.node(field.type)}
        if not field.required:
            found["default"] = _default(field)
            found["omitted"] = omits
        return found


def _origin(class_: Any) -> Any:
    return getattr(class_, "__origin__", class_)


def _default(field: inspect.Field) -> str:
    value: Any = field.default
    if value is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return "nothing"
    if value is msgspec.NODEFAULT:
        try:
            value = field.default_factory()
        except Exception as error:  # the user's
            value = error
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
    except (TypeError, msgspec.MsgspecError):
        return repr(type(value))


def odd_keys(type_: Any) -> list[str]:
    """The types of keys of dicts in `type_` that are never texts: such a dict has no deterministic bytes."""
    found: list[str] = []
    _look_for_odd_keys(inspect.type_info(type_), found, set())
    return [*dict.fromkeys(found)]


def _look_for_odd_keys(type_: inspect.Type, found: list[str], seen: set[Any]) -> None:
    if isinstance(type_, _OBJECTS):
        if type_.cls not in seen:
            seen.add(type_.cls)
            for field in type_.fields:
                _look_for_odd_keys(field.type, found, seen)
        return
    if isinstance(type_, inspect.DictType | inspect.FrozenDictType) and not _may_be_text(type_.key_type):
        found.append(_name(_Describer({}).node(type_.key_type)))
    parts = (getattr(type_, name, None) for name in ("item_type", "key_type", "value_type"))
    several = (part for name in ("item_types", "types") for part in getattr(type_, name, ()))
    for part in (*parts, *several):
        if isinstance(part, inspect.Type):
            _look_for_odd_keys(part, found, seen)


def _may_be_text(key: inspect.Type) -> bool:
    if isinstance(key, inspect.UnionType):
        return any(map(_may_be_text, key.types))
    if isinstance(key, inspect.EnumType):
        return issubclass(key.cls, str)
    if isinstance(key, inspect.LiteralType):
        return any(isinstance(value, str) for value in key.values)
    return isinstance(key, inspect.StrType | inspect.AnyType | inspect.RawType | inspect.CustomType)


def holds(schema: Schema, kind: str) -> bool:
    """Whether a value may have a part of this kind."""
    fields = (field["type"] for number in schema["objects"].values() for field in number["fields"])
    return any(_holds(node, kind) for node in (schema["root"], *fields))


def _holds(node: Mapping[str, Any], kind: str) -> bool:
    return node["kind"] == kind or any(_holds(part, kind) for part in node.get("parts", ()))


def changes(old: Schema, new: Schema) -> list[str]:
    """What has changed, though all bytes of `old` can be read by `new`; raises `Unreadable` if one may not."""
    if {old.get("format"), new.get("format")} != {SCHEMA_FORMAT}:
        raise Unreadable("what is stored was described by another version of millwheel")
    comparison = _Comparison(old["objects"], new["objects"])
    comparison.node(old["root"], new["root"], "")
    return [*dict.fromkeys(comparison.changes)]


class _Comparison:
    """Walks two descriptions side by side."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self.changes: list[str] = []
        self._old, self._new = old, new
        self._seen: set[tuple[str, str]] = set()

    def node(self, old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
        """Raises `Unreadable`."""
        if new["kind"] == "any":
            if old["kind"] != "any":
                self.changes.append(f"{_at(where)}{_name(old)} became any value")
        elif old["kind"] == "union":
            for part in old["parts"]:
                (self._one_of if new["kind"] == "union" else self.node)(part, new, where)
            self._widened(old, new, where)
        elif new["kind"] == "union":
            self._one_of(old, new, where)
            self._widened({"parts": [old]}, new, where)
        elif old["kind"] == new["kind"] == "object":
            self._objects(old["number"], new["number"], where)
        elif old["kind"] == new["kind"]:
            self._same_kind(old, new, where)
        elif (old["kind"], new["kind"]) == ("int", "float"):
            _check_bounds(old, new, where)
            self.changes.append(f"{_at(where)}int became float")
        elif old["kind"] == "values" and {_kind_of(value) for value in old["values"]} == {new["kind"]}:
            _check_bounds(old, new, where)
            self.changes.append(f"{_at(where)}{_name(old)} became {_name(new)}")
        else:
            raise Unreadable(f"{_at(where)}{_name(old)} became {_name(new)}")

    def _one_of(self, old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
        reasons = []
        for part in sorted(new["parts"], key=lambda part: part["kind"] != old["kind"]):
            before = len(self.changes), set(self._seen)
            try:
                return self.node(old, part, where)
            except Unreadable as reason:
                reasons.append(reason)
                del self.changes[before[0] :]
                self._seen = before[1]
        same = old["kind"] in {part["kind"] for part in new["parts"]}
        raise reasons[0] if same else Unreadable(f"{_at(where)}{_name(old)} became {_name(new)}")

    def _widened(self, old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
        before = {part["kind"] for part in old["parts"]}
        more = [_name(part) for part in new.get("parts", ()) if part["kind"] not in before | {"float"}]
        if more:
            self.changes.append(f"{_at(where)}may also be {', '.join(more)}")

    def _same_kind(self, old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
        _check_bounds(old, new, where)
        if old["kind"] == "values":
            gone = [value for value in old["values"] if value not in new["values"]]
            if gone:
                raise Unreadable(f"{_at(where)}{gone[0]!r} is no value of it any more")
            more = [repr(value) for value in new["values"] if value not in old["values"]]
            self.changes += [f"{_at(where)}may also be {', '.join(more)}"] if more else []
        parts = old.get("parts", ()), new.get("parts", ())
        if len(parts[0]) != len(parts[1]):
            raise Unreadable(f"{_at(where)}a tuple of {len(parts[0])} became one of {len(parts[1])}")
        for place, (one, other) in enumerate(zip(*parts, strict=True)):
            self.node(one, other, f"{where}[{place}]" if old["kind"] == "tuple" else f"{where}[…]")

    def _objects(self, old: str, new: str, where: str) -> None:
        if (old, new) in self._seen:
            return
        self._seen.add((old, new))
        one, other = self._old[old], self._new[new]
        if one["positional"] != other["positional"] or one["tag"] != other["tag"]:
            raise Unreadable(f"{_at(where)}its tag, or whether it is written as an array, has changed")
        known = {field["name"]: field for field in one["fields"]}
        declared = {field["name"]: field for field in other["fields"]}
        gone = [name for name in known if name not in declared]
        if gone:
            raise Unreadable(f"field {_path(where, gone[0])!r} was removed, which stored values have; keep it")
        if one["positional"] and [*declared][: len(known)] != [*known]:
            raise Unreadable(f"{_at(where)}values are written as arrays: new fields come last, in the old order")
        for name, field in declared.items():
            self._field(known.get(name), field, _path(where, name))

    def _field(self, old: Mapping[str, Any] | None, new: Mapping[str, Any], where: str) -> None:
        if old is None:
            if "default" not in new:
                raise Unreadable(f"field {where!r} was added without a default, and stored values lack it")
            self.changes.append(f"field {where!r} was added, {new['default']} where it is missing")
            return
        if "default" in old and "default" not in new:
            raise Unreadable(f"field {where!r} has lost its default, and stored values may lack it")
        if old.get("omitted") and old["default"] != new["default"]:
            raise Unreadable(
                f"field {where!r}: its default was {old['default']}, now {new['default']}, and values that had it were "
                "stored without it"
            )
        self.node(old["type"], new["type"], where)


def _check_bounds(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> None:
    for name in _tighter(old, new):
        raise Unreadable(f"{_at(where)}its {name} was {old.get(name)}, now {new[name]}")


def _tighter(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in (*_AT_LEAST, *_AT_MOST, *_EQUAL):
        if name not in new or old.get(name) == new[name]:
            continue
        looser = new[name] <= old[name] if name in _AT_LEAST and name in old else False
        looser = looser or (new[name] >= old[name] if name in _AT_MOST and name in old else False)
        if not looser:
            yield name


def _kind_of(value: object) -> str:
    return "int" if type(value) is int else "str"


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _at(where: str) -> str:
    return f"field {where!r}: " if where else ""


def _name(node: Mapping[str, Any]) -> str:
    if node["kind"] == "union":
        return " or ".join(_name(part) for part in node["parts"])
    if node["kind"] == "values":
        return f"one of {', '.join(map(repr, node['values']))}"
    return {"none": "None", "object": "an object", "any": "any value"}.get(node["kind"], str(node["kind"]))
