"""Coders turn values into bytes and back; each has a fingerprint that the store remembers.

Lives here: the `Coder` protocol and the shipped coders.  Never here: pickle, or anything that runs code found in
data.  Invariant: `decode(encode(v)) == v` for every value the coder accepts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar, overload, runtime_checkable

import msgspec

from millwheel.errors import CoderError, WiringError
from millwheel.schemas import Schema, describe, holds, odd_keys

if TYPE_CHECKING:
    from google.protobuf.message import Message

T = TypeVar("T")


@runtime_checkable
class Coder(Protocol[T]):
    """What a stream or state cell needs to know about its values."""

    fingerprint: str
    """Name, version and type; a store written under another fingerprint is refused."""

    def encode(self, value: T, /) -> bytes:
        """Bytes of `value`; raises `CoderError` (or `TypeError`) for a value of another type."""
        ...

    def decode(self, data: bytes, /) -> T:
        """The value of `data`; raises `CoderError` for bytes this coder never wrote."""
        ...


def no_coder(found: object) -> str:
    """What is wrong with something that was given as a coder and is none."""
    if isinstance(found, type):
        return f"the class {found.__name__}; give an object, for example JsonCoder(int)"
    missing = [name for name in ("fingerprint", "encode", "decode") if not hasattr(found, name)]
    why = f", which has no {' and no '.join(missing)}" if len(missing) < 3 else ""
    return f"{found!r:.80}{why}; for example JsonCoder(int)"


class BytesCoder:
    """Bytes as they are."""

    fingerprint = "bytes/1"

    def encode(self, value: bytes, /) -> bytes:
        """`value` itself; refuses anything but bytes."""
        if type(value) is not bytes:
            raise CoderError(f"bytes coder got {type(value).__name__}: {value!r:.80}; pass bytes")
        return value

    def decode(self, data: bytes, /) -> bytes:
        """`data` itself."""
        return data


class TextCoder:
    """`str` as UTF-8."""

    fingerprint = "text/1"

    def encode(self, value: str, /) -> bytes:
        """UTF-8 of `value`; refuses lone surrogates and anything but str."""
        try:
            return value.encode()
        except (AttributeError, UnicodeEncodeError) as error:
            raise CoderError(f"text coder cannot encode {value!r:.80}: {error}") from error

    def decode(self, data: bytes, /) -> str:
        """Text of UTF-8 `data`."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise CoderError(f"text coder cannot decode {data!r:.80}: {error}") from error


AS_IT_IS: Final[Callable[[bytes], bytes]] = bytes.__bytes__
"""The very same object, at a third of the cost of a function that returns it."""

_PLAIN: Final = (int, str, bool)
"""What is encoded can be decoded, so that nothing has to be tried."""


class _MsgspecCoder(Generic[T]):
    """Shared by JSON and msgpack: a typed msgspec encoder and decoder, made once."""

    def __init__(self, protocol: str, type_: Any) -> None:
        module: Any = getattr(msgspec, protocol)
        try:
            module.Decoder(type_)
        except TypeError as error:
            name = type(self).__name__
            raise WiringError(f"{name}({type_!r:.80}): give a type, for example {name}(int); {error}") from error
        if odd := odd_keys(type_):
            raise WiringError(
                f"{type(self).__name__}({type_!r:.80}): keys of a dict must be texts, not {', '.join(odd)}: take a list of"
                " pairs, or texts as keys; a cell of state may be a MapCell"
            )
        self.type = type_
        self.fingerprint = f"{protocol}/1:{schema_fingerprint(type_)}"
        self._encode: Any = module.Encoder(order="deterministic").encode
        self._decode: Any = module.Decoder(type_).decode
        self._plain = type_ if type_ in _PLAIN else None
        self.schema = describe(type_)
        self._times = protocol == "json" and holds(self.schema, "datetime")

    def raw(self) -> Raw:
        """See `raw`, the function."""
        return Raw(self._plain, self._encode, self._decode)

    def encode(self, value: T, /) -> bytes:
        """Deterministic bytes of `value`; refuses what could not be decoded, for example a float that is not a number
        in JSON, or a field of another type: msgspec encodes both."""
        try:
            data: bytes = self._encode(value)
            if type(value) is not self._plain:
                self._prove(value, data)
        except (TypeError, msgspec.MsgspecError, UnicodeError, OverflowError) as error:
            raise CoderError(f"{self.fingerprint} cannot encode {value!r:.80}: {error}") from error
        return data

    def _prove(self, value: T, data: bytes) -> None:
        if self._plain is not None and not isinstance(value, self._plain):
            raise TypeError(f"it is {type(value).__name__}, not {self._plain.__name__}")
        found = self._decode(data)
        if self._times and found != value and _instants(found) != _instants(value):
            raise TypeError("JSON has no time with an offset that is not in whole minutes; convert it to UTC")

    def decode(self, data: bytes, /) -> T:
        """The typed value of `data`, validated."""
        try:
            value: T = self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CoderError(f"{self.fingerprint} cannot decode {data!r:.80}: {error}") from error
        return value


def _instants(value: Any) -> Any:
    """`value` with times in UTC: equal also where Python calls times of two zones different, in an hour that comes twice."""
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value
    plain = msgspec.to_builtins(value, builtin_types=(datetime,))
    if isinstance(plain, dict):
        return {_instants(key): _instants(part) for key, part in plain.items()}
    return [*map(_instants, plain)] if isinstance(plain, list | tuple | set | frozenset) else plain


class JsonCoder(_MsgspecCoder[T]):
    """JSON through msgspec: plain types, `Decimal`, `datetime`, `date` and `UUID`, dataclasses, `msgspec.Struct`s;
    decoding validates the type.

    >>> JsonCoder(int).decode(JsonCoder(int).encode(7))
    7
    """

    @overload
    def __init__(self, type_: type[T]) -> None: ...
    @overload
    def __init__(self: JsonCoder[Any], type_: Any) -> None: ...
    def __init__(self, type_: Any) -> None:
        super().__init__("json", type_)


class MsgpackCoder(_MsgspecCoder[T]):
    """Msgpack through msgspec: as `JsonCoder`, smaller and a little faster.

    >>> MsgpackCoder(list[int]).encode([1, 2])
    b'\\x92\\x01\\x02'
    """

    @overload
    def __init__(self, type_: type[T]) -> None: ...
    @overload
    def __init__(self: MsgpackCoder[Any], type_: Any) -> None: ...
    def __init__(self, type_: Any) -> None:
        super().__init__("msgpack", type_)


M = TypeVar("M", bound="Message")


class ProtobufCoder(Generic[M]):
    """A protobuf message class; needs the extra `millwheel-streams[protobuf]`."""

    def __init__(self, message: type[M]) -> None:
        if not hasattr(message, "DESCRIPTOR"):
            raise WiringError(f"ProtobufCoder({message!r:.80}): give a class of protobuf messages")
        self.message = message
        self.fingerprint = f"protobuf/1:{message.DESCRIPTOR.full_name}"

    def encode(self, value: M, /) -> bytes:
        """Deterministic wire bytes of the message."""
        from google.protobuf.message import EncodeError

        if not isinstance(value, self.message):
            raise CoderError(f"{self.fingerprint} got {type(value).__name__}")
        try:
            data: bytes = value.SerializeToString(deterministic=True)
        except EncodeError as error:
            raise CoderError(f"{self.fingerprint} cannot encode {value!r:.80}: {error}") from error
        return data

    def decode(self, data: bytes, /) -> M:
        """The message parsed from `data`."""
        from google.protobuf.message import DecodeError

        try:
            message: M = self.message.FromString(data)
        except DecodeError as error:
            raise CoderError(f"{self.fingerprint} cannot decode {data!r:.80}: {error}") from error
        return message


class Raw(NamedTuple):
    """The bare functions of a coder, for the hot path."""

    plain: type | None
    """`encode` is only for values of exactly this type; all others are for `checked`."""
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def raw(coder: Coder[Any]) -> Raw:
    """What does the same as the coder with what it accepts; what it refuses raises any error: ask the coder for the
    `CoderError`."""
    if isinstance(coder, _MsgspecCoder):
        return coder.raw()
    if isinstance(coder, BytesCoder):
        return Raw(bytes, AS_IT_IS, AS_IT_IS)
    if isinstance(coder, TextCoder):
        return Raw(str, str.encode, bytes.decode)
    return Raw(None, coder.encode, coder.decode)


def schema_of(coder: Coder[Any]) -> Schema | None:
    """What the coder's bytes look like, if it says so."""
    schema: Schema | None = getattr(coder, "schema", None)
    return schema


def reads_of(coder: Coder[Any]) -> tuple[str, ...]:
    """Fingerprints of earlier coders whose bytes this one reads: its attribute `reads`, if it has one."""
    return tuple(getattr(coder, "reads", ()))


def checked(coder: Coder[Any]) -> Callable[[Any], bytes]:
    """The `encode` of a coder; of one that is not shipped here, with a look at what it gives.

    Anything but bytes would be found when the checkpoint is read again: too late.
    """
    if isinstance(coder, _MsgspecCoder | BytesCoder | TextCoder | ProtobufCoder):
        return coder.encode

    def encode(value: Any) -> bytes:
        data: Any = coder.encode(value)
        if type(data) is not bytes:
            raise CoderError(
                f"coder {coder.fingerprint!r} encoded {value!r:.80} as {type(data).__name__}; `encode` must give bytes"
            )
        return data

    return encode


def schema_fingerprint(type_: Any) -> str:
    """A short, stable hash of a type's JSON schema, prefixed by its name."""
    try:
        schema = msgspec.json.schema(type_)
    except TypeError:
        schema = {"type": repr(type_)}
    digest = hashlib.sha256(msgspec.json.encode(schema, order="deterministic")).hexdigest()
    return f"{getattr(type_, '__name__', repr(type_))}:{digest[:12]}"
