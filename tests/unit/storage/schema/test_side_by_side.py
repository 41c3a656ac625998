"""Two versions of a pipeline at once: what one could not take over from the other is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millwheel.coders import JsonCoder
from millwheel.ports import PipelineShape
from millwheel.schemas import describe
from millwheel.shape import SinkTable
from millwheel_storage.schema.evolution import first
from millwheel_storage.schema.side_by_side import differences


class Narrow(msgspec.Struct):
    n: int


class Wide(msgspec.Struct):
    n: int
    page: str = "/"


def shape(**more: Any) -> PipelineShape:
    coder = JsonCoder(int)
    given: dict[str, Any] = {
        "computations": {"a": ("m",)}, "subscriptions": {"a<s": "s"}, "coders": {"cell:a.n": f"value:{coder.fingerprint}"},
        "sinks": (SinkTable("t", {"k": "text"}, ("k",)),), "sources": ("src",), "schemas": {"cell:a.n": describe(int)},
    }  # fmt: skip
    return PipelineShape("p", **{**given, **more})


RUNNING = shape()


def test_hooks_may_change_and_so_may_declarations_of_what_was_earlier() -> None:
    assert differences(RUNNING, RUNNING) == []
    said_no_more = shape(formerly={"cell:a.n": "m"}, dropped=("a.old",), reads={"cell:a.n": ("x",)})
    assert differences(first(said_no_more).shape, RUNNING) == []
    assert differences(RUNNING, said_no_more) == []
    assert differences(shape(coders={**RUNNING.coders, "stream:unread": "json:int"}), RUNNING) == []


CHANGES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"computations": {"a": ("m",), "b": ()}}, ["computation 'b' is new"], ["computation 'b' is gone"]),
    ({"computations": {"a": ()}}, ["computation 'a' has changed"], ["computation 'a' has changed"]),
    ({"subscriptions": {"a<s": "t"}}, ["subscription 'a<s' has changed"], ["subscription 'a<s' has changed"]),
    ({"key_versions": {"a<s": "2"}}, ["version of the keys of 'a<s' is new"], ["version of the keys of 'a<s' is gone"]),
    ({"sources": ()}, ["source 'src' is gone"], ["source 'src' is new"]),
    ({"sinks": (SinkTable("t", {"k": "text", "n": "bigint"}, ("k",)),)}, ["sink table 't' has changed"],
     ["sink table 't' has changed"]),
    ({"snapshots": True}, ["this version has Snapshots(...), and the running version Checkpoints()"],
     ["this version has Checkpoints(), and the running version Snapshots(...)"]),
    ({"coders": {}, "schemas": {}}, ["cell 'a.n' is gone"], ["cell 'a.n' is new"]),
    ({"coders": {"cell:a.n": "value:own"}, "schemas": {}},
     [f"cell 'a.n' has coder 'value:own', and {RUNNING.coders['cell:a.n']!r} in the running version"],
     [f"cell 'a.n' has coder {RUNNING.coders['cell:a.n']!r}, and 'value:own' in the running version"]),
]  # fmt: skip


def test_kinds_of_sources_differ_only_where_both_versions_say_them() -> None:
    files, spark = shape(kinds={"src": "files"}), shape(kinds={"src": "an output of Spark"})
    assert differences(files, RUNNING) == differences(RUNNING, files) == []
    assert differences(files, spark) == differences(spark, files) == ["kind of source 'src' has changed"]


@pytest.mark.parametrize(("change", "forwards", "backwards"), CHANGES)
def test_what_is_new_gone_or_other_is_named_whichever_version_runs(
    change: dict[str, Any], forwards: list[str], backwards: list[str]
) -> None:
    assert differences(RUNNING, shape(**change)) == forwards
    assert differences(shape(**change), RUNNING) == backwards


def test_a_value_that_only_the_newer_version_reads_is_a_difference_in_both_directions() -> None:
    """The newer one may start alone.  Beside it the older one would lose the field that it does not know."""
    older, newer = shape(schemas={"cell:a.n": describe(Narrow)}), shape(schemas={"cell:a.n": describe(Wide)})
    (there,) = differences(older, newer)
    (back,) = differences(newer, older)
    assert there.startswith("cell 'a.n' cannot be read by the running version: field 'page' was added")
    assert back.startswith("cell 'a.n' cannot be read by this version: field 'page' was removed")
    (number,) = differences(RUNNING, shape(schemas={"cell:a.n": describe(float)}))
    assert number == "cell 'a.n' cannot be read by the running version: int became float"
