"""The private doors' guard. That the doors lead somewhere is tried with a real Spark in tests/integration."""

from __future__ import annotations

from typing import Any, cast

import pyspark
import pytest

from millwheel.spark.iteration import Blocking, SparkVersionError, doors


def test_another_version_of_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "5.0.1")
    with pytest.raises(SparkVersionError, match=r"tested with PySpark 4\.3, not 5\.0\.1: install pyspark~=4\.3\.0"):
        doors.ready(cast(Any, object()))


def test_a_spark_without_the_doors_is_refused_even_if_its_version_fits() -> None:
    with pytest.raises(SparkVersionError, match="no door"):
        doors.ready(cast(Any, object()), any_version=True)


PYTHON = """org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: \
Traceback (most recent call last):
  File "/somewhere/step.py", line 9, in step
    at = socket.create_connection(("127.0.0.1", 1))
         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
FRAMES = """\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
\tat org.apache.spark.api.python.PythonRunner$$anon$5.read(PythonRunner.scala:1642)
"""


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_7_1 not found!", True),
        ("Job aborted: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", True),
        ("org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location", True),
        ('  File "step.py", line 3, in f\nZeroDivisionError: division by zero', False),
        ("KeyError: 'rank'", False),
        (f"{PYTHON}ConnectionRefusedError: [Errno 111] Connection refused\n\n{FRAMES}", False),
        (f"{PYTHON}RuntimeError: BlockNotFound, and\nexecutor 1 is lost", False),
        (f"{PYTHON}ValueError: no\n\n{FRAMES}Caused by: {PYTHON}OSError: Connection reset\n{FRAMES}", False),
        (f"{PYTHON}ValueError: no\n{FRAMES}Caused by: java.io.IOException: Connection reset by peer\n{FRAMES}", True),
        (f"ExecutorLostFailure (executor 1 exited)\n{FRAMES}Caused by: {PYTHON}ValueError: no\n", True),
    ],
)
def test_a_loss_is_told_from_a_mistake(text: str, loss: bool) -> None:
    assert doors.is_loss(RuntimeError(text)) is loss


def test_checkpoints_are_some_supersteps_apart() -> None:
    with pytest.raises(ValueError, match="every must be 1 or more"):
        Blocking("somewhere", every=0)
