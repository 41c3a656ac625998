"""Injectors: sources that bring outside data in and seed the watermark (§5.2)."""

from millwheel_injectors.files import FileSource, modification_time
from millwheel_injectors.formats import Csv, JsonLines, TextLines
from millwheel_injectors.iterables import IterableSource
from millwheel_injectors.pushed import PushSource
from millwheel_injectors.spark_output import SparkOutputSource
from millwheel_injectors.watermarks import BoundedDisorder, Exact, FileCreation, Percentile

__all__ = [
    "BoundedDisorder",
    "Csv",
    "Exact",
    "FileCreation",
    "FileSource",
    "IterableSource",
    "JsonLines",
    "Percentile",
    "PushSource",
    "SparkOutputSource",
    "TextLines",
    "modification_time",
]
