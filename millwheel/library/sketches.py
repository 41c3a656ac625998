"""Approximate aggregations: sketches of a few kB in place of every value.  They need the extra `sketches`.

Lives here: HyperLogLog and t-digest of Apache DataSketches as aggregations.  What is stored is the library's own format,
which its versions in other languages read as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from millwheel.errors import CoderError, WiringError
from millwheel.library.aggregations import Aggregation, aggregation

T = TypeVar("T")


class SketchCoder:
    """A sketch by its own serialisation."""

    def __init__(self, name: str, read: Callable[[bytes], Any], write: Callable[[Any], bytes]) -> None:
        self.fingerprint = f"datasketches/1:{name}"
        self._read, self._write = read, write

    def encode(self, value: Any, /) -> bytes:
        """Its bytes."""
        return self._write(value)

    def decode(self, data: bytes, /) -> Any:
        """The sketch again; raises `CoderError` for bytes that are none."""
        try:
            return self._read(data)
        except Exception as error:
            raise CoderError(f"{self.fingerprint} cannot read {data!r:.80}: {error}") from error


def distinct(of: Callable[[T], str | int | float], precision: int = 12) -> Aggregation[T, Any, float]:
    """About how many different values: HyperLogLog with 2 ** `precision` registers of one byte.

    The standard error is 1.04 / sqrt(2 ** precision), 1.6% by default, and none for a few values.  The result does not
    depend on the order of the records.
    """
    sketches = _datasketches()
    if not 7 <= precision <= 21:
        raise WiringError(f"distinct(precision={precision}): between 7 and 21")

    def add(sketch: Any, value: T) -> Any:
        sketch.update(of(value))
        return sketch

    def merge(left: Any, right: Any) -> Any:
        union = sketches.hll_union(precision)
        union.update(left)
        union.update(right)
        return union.get_result(sketches.tgt_hll_type.HLL_8)

    # A sketch that has seen its records one by one estimates by their order as well.  A union knows the registers only.
    return aggregation(
        f"distinct by HyperLogLog {precision}", lambda: sketches.hll_sketch(precision, sketches.tgt_hll_type.HLL_8), add,
        merge, lambda sketch: float(merge(sketch, sketch).get_estimate()),
        SketchCoder(f"hll {precision}", sketches.hll_sketch.deserialize, lambda sketch: sketch.serialize_compact()), float,
        bounded=True,
    )  # fmt: skip


def quantiles(
    of: Callable[[T], float], at: Sequence[float] = (0.5, 0.9, 0.99), compression: int = 400
) -> Aggregation[T, Any, list[float] | None]:
    """About the values below which these shares of the values lie, by t-digest; None of no record.

    With the default `compression`, 8 kB, the share of values below a result is right within 0.015 in the middle and within
    0.001 at both ends.  Within that it depends on the order of the records: the same order gives the same result.
    """
    sketches = _datasketches()
    if not at or not all(0 <= share <= 1 for share in at):
        raise WiringError(f"quantiles(at={at!r}): shares between 0 and 1")

    def add(digest: Any, value: T) -> Any:
        digest.update(float(of(value)))
        return digest

    def merge(left: Any, right: Any) -> Any:
        left.merge(right)
        return left

    return aggregation(
        f"quantiles by t-digest {compression}", lambda: sketches.tdigest_double(compression), add, merge,
        lambda digest: None if digest.is_empty() else [float(digest.get_quantile(share)) for share in at],
        SketchCoder(f"t-digest {compression}", sketches.tdigest_double.deserialize, lambda digest: digest.serialize()),
        list[float] | None,
    )  # fmt: skip


def _datasketches() -> Any:
    try:
        import datasketches
    except ImportError:
        how = "pip install 'millwheel-streams[sketches]', or datasketches"
        raise WiringError(f"sketches need Apache DataSketches: {how}") from None
    return datasketches
