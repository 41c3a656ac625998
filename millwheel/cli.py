"""The command line: `millwheel run module:pipeline` and the views on committed state.

Lives here: parsing, printing, exit codes (0 fine, 1 an error that is named, 2 wrong usage, 130 stopped).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from millwheel.errors import MillwheelError, WiringError
from millwheel.launch import DEFAULT_DATA, import_pipeline, open_store, run
from millwheel.model import format_time
from millwheel.runtime.embedded import Progress
from millwheel_storage.reader import Reader, reset


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except MillwheelError as error:
        print(f"millwheel: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millwheel", description="Exactly-once keyed stream processing on Postgres.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(commands, "run", _run, "run a pipeline until its sources are finished; again to resume")
    state = _command(commands, "state", _state, "committed state: state get|scan PIPELINE COMPUTATION [KEY]", ["verb"])
    state.add_argument("computation")
    state.add_argument("key", nargs="?", default="")
    explain = _command(commands, "explain", _explain, "what holds a computation's low watermark")
    explain.add_argument("computation")
    quarantine = _command(commands, "quarantine", _quarantine, "quarantine list|show|redrive PIPELINE …", ["verb"])
    quarantine.add_argument("computation", nargs="?", default="")
    quarantine.add_argument("key", nargs="?", default="")
    sink = _command(commands, "rows", _rows, "rows of a sink table as JSON lines")
    sink.add_argument("table")
    forget = _command(commands, "reset", _reset, "drop everything the store holds of a pipeline")
    forget.add_argument("--yes", action="store_true", help="do it: there is no way back")
    return parser


def _command(
    commands: Any, name: str, command: Callable[[argparse.Namespace], int], help_: str, before: Sequence[str] = ()
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help_, description=help_)
    for argument in before:
        parser.add_argument(argument)
    parser.add_argument("pipeline", help="module:attribute, for example wordcount:pipeline")
    parser.add_argument("--store", help="postgresql:// URL; without it an embedded Postgres")
    parser.add_argument("--data", default=DEFAULT_DATA, help=f"directory of the embedded Postgres ({DEFAULT_DATA})")
    parser.set_defaults(command=command)
    return parser


def _run(options: argparse.Namespace) -> int:
    progress = run(import_pipeline(options.pipeline), options.store, options.data, _show)
    _show(progress, 0.0)
    if not progress.finished:
        print("millwheel: stopped; run it again to resume", file=sys.stderr)
        return 130
    return 0


def _show(progress: Progress, seconds: float) -> None:
    rate = f" {progress.injected / seconds:,.0f}/s" if seconds else ""
    watermark = format_time(min(progress.watermarks.values()))
    extras = {"late": progress.late, "rejected": progress.rejected, "quarantined keys": progress.quarantined}
    noted = "".join(f" {name} {count:,}" for name, count in extras.items() if count)
    print(
        f"millwheel: {progress.injected:,} rows in{rate}, {progress.records:,} records, watermark {watermark}{noted}",
        flush=True,
    )


@contextmanager
def _reader(options: argparse.Namespace) -> Iterator[Reader]:
    pipeline = import_pipeline(options.pipeline)
    with open_store(options.store, options.data) as url, Reader(url, pipeline.name) as reader:
        yield reader


def _state(options: argparse.Namespace) -> int:
    if options.verb not in ("get", "scan"):
        raise WiringError(f"state {options.verb!r}: use 'state get' or 'state scan'")
    with _reader(options) as reader:
        rows = (
            reader.get_state(options.computation, options.key)
            if options.verb == "get"
            else reader.scan_state(options.computation, options.key)
        )
        for row in rows:
            entry = f"[{row.entry}]" if row.entry else ""
            print(f"{row.key}\t{row.cell}{entry}\t{row.value.decode(errors='backslashreplace')}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    graph = import_pipeline(options.pipeline).graph()
    if options.computation not in graph.computations:
        raise WiringError(f"no computation {options.computation!r}; there are {sorted(graph.computations)}")
    with _reader(options) as reader:
        watermarks = reader.watermarks()
        for name in [*sorted(graph.senders(options.computation)), options.computation]:
            print(f"{name}\twatermark {format_time(watermarks.get(name, -(2**62)))}")
        for timer in reader.timers(options.computation)[:10]:
            print(f"timer\t{format_time(timer.timestamp)}\tkey {timer.key!r} tag {timer.tag!r} ({timer.kind})")
        for key, at in sorted(reader.holds(options.computation).items(), key=lambda hold: hold[1])[:10]:
            print(f"hold\t{format_time(at)}\tkey {key!r}")
        for oldest in reader.oldest_productions():
            print(f"{oldest.kind}\t{format_time(oldest.timestamp)}\tinterval {oldest.interval} key {oldest.key!r}")
    return 0


def _quarantine(options: argparse.Namespace) -> int:
    with _reader(options) as reader:
        match options.verb:
            case "list":
                for computation, key, count in reader.quarantined():
                    print(f"{computation}\t{key}\t{count} waiting")
            case "show":
                for row in reader.quarantine_rows(options.computation, options.key):
                    print(f"#{row.order} {format_time(row.timestamp)} {row.tag or row.value!r}\n{row.error}")
            case "redrive":
                reader.request_redrive(options.computation, options.key)
                print(f"millwheel: {options.key!r} will be redriven by the running pipeline, or by the next run")
            case _:
                raise WiringError(f"quarantine {options.verb!r}: use list, show or redrive")
    return 0


def _rows(options: argparse.Namespace) -> int:
    import msgspec

    with _reader(options) as reader:
        for row in reader.sink_rows(options.table):
            print(msgspec.json.encode(row).decode())
    return 0


def _reset(options: argparse.Namespace) -> int:
    pipeline = import_pipeline(options.pipeline)
    if not options.yes:
        raise WiringError(f"reset drops all state, timers and rows of {pipeline.name!r}: add --yes")
    with open_store(options.store, options.data) as url:
        found = reset(url, pipeline.name)
    print(f"millwheel: {pipeline.name!r} " + ("is gone" if found else "was not there"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
