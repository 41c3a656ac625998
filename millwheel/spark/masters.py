"""Spark's masters: which of them are this machine, and a session that suits what is hosted there.

Lives here: what depends on the master's URL.  Never here: jobs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millwheel.errors import ChannelError, WiringError
from millwheel.spark.java import JavaNotFoundError, ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KNOWN = re.compile(r"local(\[.+\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|spark://.+|yarn|k8s://.+")

SETTINGS = {
    # Two attempts of one worker would be two workers.
    "spark.speculation": "false",
    # An application whose executors are killed again and again is not given up; a standalone master has a setting of its own.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.ui.showConsoleProgress": "false",
}
ON_THIS_MACHINE = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def is_local(master: str) -> bool:
    """Whether all executors are on the driver's machine, for certain.

    >>> is_local("local[2]"), is_local("local-cluster[2,1,1024]"), is_local("spark://127.0.0.1:7077")
    (True, True, False)
    """
    return master == "local" or master.startswith(("local[", "local-cluster["))


def check_master(master: str) -> None:
    """Raises `WiringError` for what Spark would not take."""
    if not _KNOWN.fullmatch(master):
        raise WiringError(
            f"{master!r} is no master of Spark: write spark://HOST:7077, local[N], local-cluster[EXECUTORS,CORES,MB], yarn "
            "or k8s://…"
        )


def check_reachable(master: str, has_certificates: bool) -> None:
    """Raises `ChannelError` when workers could not reach each other."""
    if not is_local(master) and not has_certificates:
        raise ChannelError(
            f"executors of {master} may be on other machines, and workers do not listen beyond their own without "
            "certificates: make them with millwheel certs, put them into the same directory on every machine, and name it "
            "with --certs"
        )


def made_session(master: str, name: str, settings: Mapping[str, str]) -> SparkSession:
    """A session of its own.  `settings` go before what suits hosting; spark-defaults.conf goes after both.

    Raises `WiringError` when this process has a session already: its master, settings and Python are not those asked for.
    """
    check_master(master)
    try:
        ensure_java()
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except JavaNotFoundError as error:
        raise WiringError(str(error)) from error
    except ModuleNotFoundError as error:
        raise WiringError(f"{error.name} is missing: pip install 'millwheel-streams[cluster,spark]'") from error
    if SparkContext._active_spark_context is not None:
        raise WiringError(
            "this process has a session of Spark already: hand it to millwheel.spark.hosting.up, or stop it"
        )
    if is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    given = {**SETTINGS, **(ON_THIS_MACHINE if is_local(master) else {}), **settings}
    for key, value in given.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
