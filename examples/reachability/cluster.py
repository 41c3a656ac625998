"""The pipeline for `millwheel up examples.reachability.cluster:pipeline`; the environment says which.

`REACHABILITY` is a JSON object with fields of `Reachability`, such as `{"links": 2000, "snapshot_every_ms": 200}`.  All
processes of a cluster have the same one.
"""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from examples.reachability.links import arriving
from examples.reachability.pages import build
from examples.reachability.runs import SETTING, Reachability

USUAL: Final = {"url": "", "pipeline": "reachability", "links": 10_000, "split_keys": ("p3", "p6")}

_given: dict[str, Any] = msgspec.json.decode(os.environ.get(SETTING, "{}"))
job: Final = msgspec.convert({**USUAL, **_given}, Reachability)
pipeline: Final = build(arriving(job.links, job.seed), job.pipeline, job.split_keys, job.snapshot_every_ms)
