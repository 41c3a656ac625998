"""The value of a key that is in memory in part: it is asked for, unless it is known that there is none."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import Context, JsonCoder, Record, ValueCell
from millwheel.core.keys.cache import StateCache
from millwheel.work import Known, Wanted
from tests.unit.api.hooks import computation_of, executor_of, part, work


@pytest.mark.parametrize("by_epochs", [False, True])
@pytest.mark.parametrize(
    ("known", "lacking"),
    [
        (Known(set(), set()), [("p", "text", "")]),
        (Known({("text", "")}, set()), []),
        (Known({("other", "")}, set()), [("p", "text", "")]),
        (Known(set(), {"text"}), []),
    ],
)
def test_a_value_of_which_nothing_is_known_is_asked_for(known: Known, lacking: list[Wanted], by_epochs: bool) -> None:
    seen: list[str] = []

    def look(self: Any, context: Context, record: Record[str]) -> None:
        seen.append(self.text.get())

    cache = StateCache(10**6, by_epochs=by_epochs)
    cache.insert("p", {}, more=True)
    cache.partial["p"] = known
    executor = executor_of(computation_of(look, cells={"text": ValueCell(JsonCoder(str), "none")}))
    given = work(part(("p=1", 1)), cache=cache)
    assert executor.run(given).lacking == lacking
    if lacking:
        assert seen == []
        cache.fill(lacking, [("p", "text", "", b'"stored"')])
        assert executor.run(given).lacking == []
    assert seen == ["stored" if lacking else "none"]
