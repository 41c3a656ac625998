r"""Text of a user's on the terminal: one line, nothing that a terminal obeys, and the way back.

Lives here: the notation.  What Python does not call printable (control characters, line ends, what turns the direction
of writing) and the backslash are written as in a Python string: `\t`, `\n`, `\x00`, `\x1b`, `\u202e`, `\\`.  Keys are
shown so and given so, so that every key has one name; a key without such characters is its own name.
"""

from __future__ import annotations

import json
import re
from typing import Final

from millwheel.errors import WiringError

_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
"""The quotes are here for keys that are copied out of a message, where they are shown by `repr`."""

_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([tnr\\'\"])|)")


def escaped(text: str) -> str:
    r"""`text` in the notation.

    >>> print(escaped("C:\\new\tline\x1b[0m"))
    C:\\new\tline\x1b[0m
    """
    return harmless(text.replace("\\", "\\\\"))


def unescaped(text: str, what: str = "key") -> str:
    r"""The text that `escaped` gave; `WiringError`, which calls it `what`, when it is not the notation.

    >>> unescaped(r"tab\tkey")
    'tab\tkey'
    """

    def character(match: re.Match[str]) -> str:
        *numbers, name = match.groups()
        digits = next(filter(None, numbers), None)
        if name:
            return _NAMED[name]
        if digits is None or int(digits, 16) > 0x10FFFF:
            raise WiringError(
                f"{what} {escaped(text)}: a backslash is written \\\\, a control character \\t, \\n or \\x1b"
            )
        return chr(int(digits, 16))

    found = _ESCAPE.sub(character, text)
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise WiringError(f"{what} {escaped(text)} is not UTF-8, and keys are") from error
    return found


def harmless(text: str) -> str:
    r"""`text` on one line and without control characters; a backslash stays as it is, so there is no way back.

    >>> print(harmless('{"path":"C:\\\\new"}\n'))
    {"path":"C:\\new"}\n
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def harmless_json(text: str) -> str:
    r"""One line of JSON without control characters: where JSON lets them stand as they are, they are escaped.

    >>> print(harmless_json('"\x9b"'))
    "\u009b"
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
