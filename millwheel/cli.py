"""The command line: `millwheel run module:pipeline` and the views on committed state.

Lives here: parsing, printing, exit codes (0 fine, 1 an error that is named, 2 wrong usage, 130 stopped).
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from millwheel.committed import Committed, Published, reset
from millwheel.errors import MillwheelError, WiringError
from millwheel.escapes import escaped, harmless, harmless_json, unescaped
from millwheel.launch import DEFAULT_DATA, import_pipeline, run
from millwheel.model import SECOND, format_time
from millwheel.runtime.progress import Progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except MillwheelError as error:
        print(f"millwheel: {harmless(' '.join(str(error).split()))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        if command is not _tail:  # there it is the way to end it
            print("millwheel: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millwheel", description="Exactly-once keyed stream processing on Postgres.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _command(commands, "run", _run, "run a pipeline until its sources are finished; again to resume")
    state = _command(commands, "state", _state, "committed state: state get|scan PIPELINE COMPUTATION [KEY]", ["verb"])
    state.add_argument("computation")
    _key_argument(state, "of it; for scan the beginning of keys")
    explain = _command(commands, "explain", _explain, "what holds a computation's low watermark")
    explain.add_argument("computation")
    quarantine = _command(commands, "quarantine", _quarantine, "quarantine list|show|redrive PIPELINE …", ["verb"])
    quarantine.add_argument("computation", nargs="?", default="")
    _key_argument(quarantine, "in it")
    tail = _command(commands, "tail", _tail, "the last records of a published stream as JSON lines")
    tail.add_argument("stream")
    tail.add_argument("-n", type=int, default=10, metavar="N", help="how many records to begin with (10)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with what is committed later, until Ctrl-C")
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


def _key_argument(command: argparse.ArgumentParser, where: str) -> None:
    command.add_argument(
        "key",
        nargs="?",
        default="",
        help=f"{where}, as keys are shown: \\\\ for a backslash, \\t, \\n, \\x00, \\x1b, \\u202e for what cannot be printed",
    )


def _key(options: argparse.Namespace) -> str:
    return unescaped(options.key)


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
    lag = "" if progress.lag_us is None else f", lag {max(0, progress.lag_us) / SECOND:,.1f} s"
    extras = {
        "late": progress.late, "rejected": progress.rejected, "repeated": progress.repeated,
        "quarantined keys": progress.quarantined, "redriven": progress.redriven,
    }  # fmt: skip
    noted = "".join(f" {name} {count:,}" for name, count in extras.items() if count)
    print(
        f"millwheel: {progress.injected:,} rows in{rate}, {progress.records:,} records, "
        f"watermark {watermark}{lag}{noted}",
        flush=True,
    )
    if progress.waits_for:
        where = "quarantine list" if progress.waits_for.startswith("the quarantine") else "explain"
        print(f"millwheel: all input is read; waiting for {progress.waits_for}: see millwheel {where}", flush=True)


def _committed(options: argparse.Namespace) -> Committed:
    return Committed(import_pipeline(options.pipeline), options.store, options.data)


def _state(options: argparse.Namespace) -> int:
    if options.verb not in ("get", "scan"):
        raise WiringError(f"state {options.verb!r}: use 'state get' or 'state scan'")
    key = _key(options)
    with _committed(options) as committed:
        rows = (
            committed.reader.get_state(options.computation, key)
            if options.verb == "get"
            else committed.reader.scan_state(options.computation, key)
        )
        for row in rows:
            entry = f"[{escaped(row.entry)}]" if row.entry else ""
            value = harmless(row.value.decode(errors="backslashreplace"))
            print(f"{escaped(row.key)}\t{row.cell}{entry}\t{value}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    with _committed(options) as committed:
        for held in committed.explain(options.computation):
            print(held)
    return 0


def _quarantine(options: argparse.Namespace) -> int:
    with _committed(options) as committed:
        match options.verb:
            case "list":
                for computation, key, count in committed.quarantined():
                    print(f"{computation}\t{escaped(key)}\t{count} waiting")
            case "show":
                for row in committed.quarantine(options.computation, _key(options)):
                    what = escaped(row.tag) or repr(row.value)
                    error = "\n".join(map(harmless, row.error.split("\n")))
                    print(f"#{row.order} {format_time(row.timestamp)} {what}\n{error}")
            case "redrive":
                committed.redrive(options.computation, _key(options))
                print(f"millwheel: {_key(options)!r} will be redriven by the running pipeline, or by the next run")
            case _:
                raise WiringError(f"quarantine {options.verb!r}: use list, show or redrive")
    return 0


def _tail(options: argparse.Namespace) -> int:
    if ":" in options.stream and ":" not in options.pipeline:  # a stream's name holds no colon: either order will do
        options.pipeline, options.stream = options.stream, options.pipeline
    if options.n < 0:
        raise WiringError(f"tail -n {options.n}: a number of records")
    with _committed(options) as committed:
        read = committed.follow if options.follow else committed.tail
        for record in read(options.stream, options.n):
            if record.missed:
                print(f"millwheel: missed {record.missed:,} records that are no longer kept", file=sys.stderr)
            print(_json_line(record), flush=options.follow)
    return 0


def _json_line(record: Published) -> str:
    line = {"position": record.position, "time": format_time(record.timestamp), "value": _shown(record.value)}
    return harmless_json(msgspec.json.encode(line, enc_hook=_shown_inside).decode())


def _shown(value: Any) -> Any:
    """Bytes as text if they are text, else as base64; a protobuf message as its JSON; the rest is for msgspec."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(value)
    return value


def _shown_inside(value: Any) -> str:
    """What a coder of the user's own has decoded and JSON does not know."""
    return repr(value)


def _rows(options: argparse.Namespace) -> int:
    with _committed(options) as committed:
        for row in committed.rows(options.table):
            print(harmless_json(msgspec.json.encode(row).decode()))
    return 0


def _reset(options: argparse.Namespace) -> int:
    pipeline = import_pipeline(options.pipeline)
    if not options.yes:
        raise WiringError(f"reset drops all state, timers and rows of {pipeline.name!r}: add --yes")
    found = reset(pipeline, options.store, options.data)
    print(f"millwheel: {pipeline.name!r} " + ("is gone" if found else "was not there"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
