"""Text of a user's on the terminal: harmless, one line, and the way back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.errors import WiringError
from millwheel.escapes import escaped, harmless, harmless_json, unescaped

KEYS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\\\0\t\n\r\x1b\x7f\x9b\u202e\u2028xnu0'"))


@given(KEYS)
def test_every_key_is_one_printable_line_that_names_it(key: str) -> None:
    shown = escaped(key)
    assert shown.isprintable()
    assert unescaped(shown) == key


@given(KEYS)
def test_a_key_copied_from_a_message_names_it_too(key: str) -> None:
    assert unescaped(repr(key)[1:-1]) == key


@pytest.mark.parametrize("key", ["", "word 3", "é", "日本", "a=b/c:d", "it's", '"', "%s"])
def test_a_key_without_such_characters_is_its_own_name(key: str) -> None:
    assert escaped(key) == key


@pytest.mark.parametrize("text", ["C:\\dir", "\\", "a\\x1", "\\u12", "\\U00110000", "\\q", "\\\\\\"])
def test_half_an_escape_is_refused(text: str) -> None:
    with pytest.raises(WiringError, match="a backslash is written") as error:
        unescaped(text)
    assert str(error.value).isprintable()


@pytest.mark.parametrize("text", ["\\ud800", "\udcff"])
def test_what_no_key_can_be_is_refused(text: str) -> None:
    with pytest.raises(WiringError, match="is not UTF-8") as error:
        unescaped(text)
    assert str(error.value).isprintable()


@given(KEYS)
def test_json_is_the_same_json(text: str) -> None:
    line = harmless_json(json.dumps(text, ensure_ascii=False))
    assert line.isprintable()
    assert json.loads(line) == text
    assert harmless(text).isprintable()
