"""Every private door of Spark that the iterations go through, and no other module goes through one.

Tested against PySpark 4.3 (`TESTED`); `ready` refuses another version unless asked to try. What each is for:

* `_jrdd.count()` materialises an RDD without a pass through Python, which `RDD.count` makes.
* `_reserialize` with the serializer that a shuffle uses, so that a union of the two needs no pass through Python.
* `RDD.localCheckpoint` is public. Its loss shows as `CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND`, which is not documented.
* `statusStore().rdd(id)` names the blocks that are still held. The store is fed by a listener, so it is read only after
  `listenerBus().waitUntilEmpty`: without that, a block stored a moment ago looks lost. `SparkEnv.blockManager` would answer
  without delay. But it names a class that is not there, and py4j's gateway ends when it looks at that.
* `PartitionPruningRDD.create` reads the partitions that survive, without computing those that are gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, SparkContext, StorageLevel
from pyspark.errors import PySparkException
from pyspark.serializers import BatchedSerializer

from millwheel.limits import ITERATION_BUS_WAIT_MS
from millwheel.spark.iteration.errors import SparkVersionError

TESTED: Final = "4.3"
BLOCK_LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
JobFailed: Final = (Py4JJavaError, PySparkException)
"""What PySpark raises when a job fails, whoever started it.  The second one comes where a SparkSession was ever made: it
turns some exceptions of the JVM into its own, errors of user code among them."""

_EXECUTOR_TROUBLE: Final = re.compile(
    r"ExecutorLostFailure|FetchFailed|MetadataFetchFailed|Could not find (?:Cored|Coarse)|executor .{0,60}(?:lost|exit)"
    r"|BlockNotFound|Failed to (?:get|fetch) (?:broadcast|block)|Connection (?:reset|refused)|ShuffleOutputNotFound",
    re.IGNORECASE,
)
_PYTHON_ERROR: Final = re.compile(r"Traceback \(most recent call last\):.*?(?=\n\s*at [\w.$]+|\Z)", re.DOTALL)
"""What user code raised, between what Spark says."""


def ready(context: SparkContext, *, any_version: bool = False) -> None:
    """Refuse a Spark whose private doors nobody has tried."""
    if pyspark.__version__.rsplit(".", 1)[0] != TESTED and not any_version:
        raise SparkVersionError(
            f"iterations use private parts of Spark and were tested with PySpark {TESTED}, not {pyspark.__version__}: "
            f"install pyspark~={TESTED}.0, or pass any_version=True and watch the first recovery"
        )
    try:
        context._jsc.sc().statusStore()
        context._jsc.sc().listenerBus()
        _pruning(context)
    except (AttributeError, Py4JError) as error:
        raise SparkVersionError(f"PySpark {pyspark.__version__} has no door where {TESTED} has it: {error}") from error


def alike(rdd: RDD[Any]) -> RDD[Any]:
    """The RDD in the form that a shuffle's output has, so that a union with one needs no pass through Python."""
    return rdd._reserialize(BatchedSerializer(rdd.ctx._unbatched_serializer))  # type: ignore[no-untyped-call]


def kept(rdd: RDD[Any]) -> RDD[Any]:
    """The RDD, to be cached in memory and on disk, in that form."""
    return alike(rdd).persist(StorageLevel.MEMORY_AND_DISK)


def materialise(rdd: RDD[Any]) -> None:
    """Compute and cache every partition, without a pass through Python."""
    rdd._jrdd.count()


def together(rdds: Sequence[RDD[Any]]) -> RDD[Any]:
    """One RDD whose partition i is partition i of each, in their order. All must be partitioned by the same function."""
    if len(rdds) == 1:
        return rdds[0]
    partitions = rdds[0].getNumPartitions()
    union = rdds[0].ctx.union(list(rdds))
    if union.getNumPartitions() != partitions:
        raise AssertionError(f"{len(rdds)} RDDs are not partitioned alike: {[r.getNumPartitions() for r in rdds]}")
    return union


def held(rdd: RDD[Any]) -> set[int]:
    """The partitions of a cached RDD that some live executor holds."""
    spark = rdd.ctx._jsc.sc()
    _wait_for_bus(spark)
    try:
        partitions = spark.statusStore().rdd(rdd.id()).partitions().get().toVector()
    except JobFailed as error:
        if "NoSuchElement" in str(error):  # nothing of it is left
            return set()
        raise
    blocks = [partitions.apply(place) for place in range(partitions.length())]
    return {int(block.blockName().rsplit("_", 1)[1]) for block in blocks if not block.executors().isEmpty()}


def only(rdd: RDD[Any], partitions: Iterable[int]) -> RDD[Any]:
    """These partitions alone, read where they are; the rest is not computed."""
    jvm, numbers = rdd.ctx._jvm, rdd.ctx._jvm.java.util.ArrayList()  # type: ignore[union-attr]
    for number in sorted(partitions):
        numbers.add(number)
    wanted = jvm.PythonUtils.toSeq(numbers).toSet()  # type: ignore[union-attr]
    pruned = _pruning(rdd.ctx)(rdd._jrdd.rdd(), wanted)
    return RDD(pruned.toJavaRDD(), rdd.ctx, rdd._jrdd_deserializer)


def executors(context: SparkContext) -> frozenset[str]:
    """The addresses of the block managers that the driver knows, its own among them."""
    shown = (
        context._jsc.sc().getExecutorMemoryStatus().keys().mkString(" ")
    )  # one call for all: asked twice a superstep
    return frozenset(shown.split())


def is_loss(error: BaseException) -> bool:
    """Whether a job failed because an executor, or what it held, was gone; else user code failed.

    User code may fail with the same words: it asks a database, whose connection is refused.
    """
    said = _PYTHON_ERROR.sub("", str(error))
    return BLOCK_LOST in said or bool(_EXECUTOR_TROUBLE.search(said))


def says_block_lost(error: BaseException) -> bool:
    """Whether a job failed because a block of a state was gone."""
    return BLOCK_LOST in str(error)


def lost_after(rdd: RDD[Any], error: BaseException | None, patience_s: float = 10.0) -> set[int]:
    """The partitions of a cached RDD that no executor holds any more.

    When `error` says that one was gone and none is missing yet, the driver is asked again until one is.
    """
    deadline = time.monotonic() + patience_s
    everything = set(range(rdd.getNumPartitions()))
    while True:
        lost = everything - held(rdd)
        if lost or error is None or not says_block_lost(error) or time.monotonic() > deadline:
            return lost
        time.sleep(0.05)


def _pruning(context: SparkContext) -> Any:
    return context._jvm.org.apache.spark.rdd.PartitionPruningRDD.create  # type: ignore[union-attr]


def _wait_for_bus(spark: Any) -> None:
    try:
        spark.listenerBus().waitUntilEmpty(ITERATION_BUS_WAIT_MS)
    except JobFailed as error:
        if "Timeout" not in str(error):
            raise
