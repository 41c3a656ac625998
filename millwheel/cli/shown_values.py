"""Decoded values as JSON, for people and for programs that read what a command prints.

Lives here: what is shown of a value that JSON does not know.  Never here: where values come from.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from millwheel.coders import BytesCoder, Coder, JsonCoder, TextCoder
from millwheel.escapes import harmless, harmless_json


def as_json(value: Any) -> str:
    """A value on one line, without anything that a terminal obeys."""
    return harmless_json(msgspec.json.encode(value, enc_hook=_shown_inside).decode())


def shown_stored(data: bytes, coder: Coder[Any] | None) -> str:
    """Stored bytes as they are where that is text; else as their coder decodes them, in JSON."""
    stored = harmless(data.decode(errors="backslashreplace"))
    if coder is None or isinstance(coder, TextCoder | JsonCoder | BytesCoder):
        return stored
    try:
        return as_json(shown(coder.decode(data)))
    except Exception:  # what a coder of a user's own raises, nobody knows; `millwheel check` says which values it is
        return stored


def shown(value: Any) -> Any:
    """Bytes as text if they are text, else as base64; a protobuf message as its JSON; the rest is for msgspec.

    A struct that is stored as an array, such as a `Pane`, has the names of its fields.
    """
    if isinstance(value, msgspec.Struct) and value.__struct_config__.array_like and value.__struct_config__.tag is None:
        return {name: shown(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value)
    return value


def _shown_inside(value: Any) -> str:
    """What a coder of the user's own has decoded and JSON does not know."""
    return repr(value)
