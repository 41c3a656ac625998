"""The filter of keys that an interval has had, against a plain set: it may ask too often, and never not."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.core.ids.seen import SeenKeys

keys = st.text(st.sampled_from("abä\0"), max_size=4)


@given(st.lists(st.lists(keys, unique=True, max_size=6), max_size=20), st.booleans(), st.integers(1, 300))
def test_a_key_that_has_passed_is_asked_for(bundles: list[list[str]], blank: bool, room: int) -> None:
    sizes = {"SEEN_FIRST_KEYS": room, "SEEN_GROWTH": 2, "SEEN_PAGES": 2, "SEEN_BITS_A_KEY": 4}
    with patch.multiple(limits, **sizes):  # type: ignore[call-overload]
        seen, passed = SeenKeys(blank), set[str]()
        for bundle in bundles:
            asked = seen.add(bundle)
            assert asked == [key for key in bundle if key in asked]
            assert passed.intersection(bundle) <= set(asked)
            passed.update(bundle)
            if not blank:
                assert asked == bundle


def test_few_keys_are_asked_for_that_have_not_passed_and_all_when_there_are_too_many() -> None:
    with patch.multiple(limits, SEEN_FIRST_KEYS=1_024, SEEN_PAGES=2):
        room = (2**14 + 2**17) // limits.SEEN_BITS_A_KEY
        seen, bundle = SeenKeys(blank=True), 256
        asked = sum(
            len(seen.add([f"{n:09}" for n in range(first, first + bundle)])) for first in range(0, room, bundle)
        )
        assert 0 < asked < room // 70
        assert seen.add(["new"]) == ["new"]
        assert seen.add(["newer"]) == ["newer"]
