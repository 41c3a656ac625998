"""What a raw row of a text file is, and its value.

Lives here: `TextLines`, `JsonLines` and `Csv`, which turn lines into rows.  Never here: files, positions, event time.
Invariants: every raw row is a value, a reject, or deliberately nothing (a blank line, a header).  Where rows begin does not
depend on how many lines were offered at once, so row numbers are the same after any restart.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, overload

import msgspec
from typing_extensions import TypeVar

from millwheel.errors import SourceError
from millwheel.limits import VALUE_LIMIT_BYTES
from millwheel_injectors.arguments import check_names, check_type
from millwheel_injectors.rejects import Reject
from millwheel_injectors.streams import Oversized

T = TypeVar("T", default=Any)
T_co = TypeVar("T_co", covariant=True, default=Any)

UNENDED: Final = "unexpected end of data"
"""What `csv` says of a quoted field that is still open after the last line."""


class Parsed(msgspec.Struct, Generic[T_co]):
    """`len(raws)` raw rows that took `lines` lines; `rows` numbers the values within `raws`, as rejects
    do."""

    lines: int
    raws: Sequence[bytes]
    rows: Sequence[int]
    values: list[T_co]
    rejects: list[Reject]


class Parser(Protocol[T_co]):
    """Reads one file; made by a format."""

    memory: Any
    """What a later parser of the same file must know (JSON), such as the header."""

    def parse(self, lines: list[bytes], row: int, limit: int, final: bool) -> Parsed[T_co]:
        """At most `limit` rows from `lines`, the first of which begins raw row `row`.

        `final` says that no line will follow.  No row at all means: offer more lines.
        """
        ...


class Format(Protocol[T_co]):
    """How to read a text file into values of a type."""

    head_lines: int
    """Complete lines a growing file needs before it can be told from others: one, and the header if any."""

    def parser(self) -> Parser[T_co]:
        """A parser for one file, at its beginning."""
        ...


class MalformedError(ValueError):
    """A raw row that has no value; the message is the reason."""


class BlankError(Exception):
    """A raw row that is blank: neither a value nor malformed."""


def check_encoding(encoding: str) -> str:
    """`encoding`, when newlines and quotes are single ASCII bytes in it; a file's byte order mark is taken off before."""
    try:
        name = codecs.lookup(encoding).name
    except (LookupError, TypeError) as error:
        raise ValueError(f"encoding {encoding!r:.80}: give the name of an encoding, for example 'utf-8'") from error
    if name == "utf-8-sig":
        return "utf-8"
    if '\n"'.encode(encoding) != b'\n"':
        raise ValueError(f"encoding {encoding!r} is not a superset of ASCII; convert the file to utf-8 first")
    return encoding


def convert_each(raws: Sequence[bytes], convert: Callable[[int], Any]) -> Parsed:
    """The slow way: row by row, `convert(index)` raising `MalformedError` or `BlankError`."""
    parsed = Parsed(len(raws), raws, [], [], [])
    rows: list[int] = []
    for index, raw in enumerate(raws):
        try:
            if isinstance(raw, Oversized):
                raise MalformedError(f"longer than {VALUE_LIMIT_BYTES} bytes")
            parsed.values.append(convert(index))
            rows.append(index)
        except MalformedError as error:
            parsed.rejects.append(Reject(index, str(error), raw))
        except BlankError:
            continue
    parsed.rows = rows
    return parsed


def decode_text(raw: bytes, encoding: str) -> str:
    """Text of `raw`, or `MalformedError`."""
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise MalformedError(f"not {encoding}: {error}") from error


def decode_lines(lines: list[bytes], encoding: str) -> list[str] | None:
    """All lines decoded at once, without their carriage returns; None when one of them cannot be."""
    if Oversized in set(map(type, lines)):
        return None
    try:
        text = b"\n".join(lines).decode(encoding)
    except UnicodeDecodeError:
        return None
    if "\r" in text:
        return [line.removesuffix("\r") for line in text.split("\n")]
    return text.split("\n")


class TextLines:
    """One `str` per line, without its newline (LF or CRLF); blank lines are empty strings.

    >>> TextLines("latin-1").parser().parse([b"caf\\xe9"], row=0, limit=10, final=False).values
    ['café']
    """

    head_lines = 1

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = check_encoding(encoding)

    def parser(self) -> Parser[str]:
        """A parser for one file."""
        return _TextParser(self.encoding)


class _TextParser:
    def __init__(self, encoding: str) -> None:
        self.memory: Any = None
        self._encoding = encoding

    def parse(self, lines: list[bytes], row: int, limit: int, final: bool) -> Parsed:
        lines = lines[:limit]
        text = decode_lines(lines, self._encoding) if lines else []
        if text is not None:
            return Parsed(len(lines), lines, range(len(lines)), list(text), [])
        return convert_each(lines, lambda index: decode_text(lines[index], self._encoding).removesuffix("\r"))


class JsonLines(Generic[T]):
    """One JSON value per line, of `type`: a `msgspec.Struct`, a dataclass, a plain type.  Blank lines are
    skipped.

    >>> JsonLines(dict[str, int]).parser().parse([b'{"a": 1}'], row=0, limit=10, final=False).values
    [{'a': 1}]
    """

    head_lines = 1

    @overload
    def __init__(self, type: type[T]) -> None: ...
    @overload
    def __init__(self: JsonLines[Any], type: Any = Any) -> None: ...
    def __init__(self, type: Any = Any) -> None:
        check_type(f"JsonLines({type!r:.80})", type)
        self.type = type
        self._decoder = msgspec.json.Decoder(type)

    def parser(self) -> Parser[T]:
        """A parser for one file."""
        return _JsonParser(self._decoder.decode)


class _JsonParser:
    def __init__(self, decode: Callable[[bytes], Any]) -> None:
        self.memory: Any = None
        self._decode = decode

    def parse(self, lines: list[bytes], row: int, limit: int, final: bool) -> Parsed:
        lines = lines[:limit]
        try:
            if Oversized not in set(map(type, lines)):
                values = list(map(self._decode, lines))
                return Parsed(len(lines), lines, range(len(lines)), values, [])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        return convert_each(lines, lambda index: self._one(lines[index]))

    def _one(self, line: bytes) -> Any:
        if not line.strip():
            raise BlankError
        try:
            return self._decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise MalformedError(str(error)) from error


class Csv(Generic[T]):
    """Delimited records; a quoted field may hold newlines, and then one record is one raw row.

    `type` (a `msgspec.Struct` or dataclass) gets the fields by column name, numbers parsed.  Without `type`, a value is a
    dict by column name, or a list when there are no names.  Names come from `columns`, else from the header, else from the
    type's fields.  The header, when there is one, is raw row 0.  `quote=None` reads quotes as text.

    >>> Csv(header=True).parser().parse([b"a,b", b"1,2"], row=0, limit=10, final=True).values
    [{'a': '1', 'b': '2'}]
    """

    def __init__(
        self,
        type: type[T] | None = None,
        columns: Sequence[str] | None = None,
        *,
        header: bool = False,
        delimiter: str = ",",
        quote: str | None = '"',
        encoding: str = "utf-8",
    ) -> None:
        if type is not None:
            check_type(f"Csv({type!r:.80})", type)
        check_names("Csv(columns={})", columns)
        csv.field_size_limit(max(csv.field_size_limit(), VALUE_LIMIT_BYTES))  # of the process; a record has its own
        self.type = type
        self.header = header
        self.encoding = check_encoding(encoding)
        self.head_lines = 2 if header else 1
        self.columns = list(columns) if columns is not None else None
        if self.columns is None and type is not None and not header:
            self.columns = field_names(type)
        for what, mark, other in (("delimiter", delimiter, ""), ("quote", quote, ", or None")):
            if not (mark is None and other) and (not isinstance(mark, str) or len(mark) != 1):
                raise ValueError(f"Csv({what}={mark!r}): give one character{other}")
        quoting = csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL
        self.dialect: dict[str, Any] = {
            "delimiter": delimiter,
            "quotechar": quote,
            "quoting": quoting,
            "strict": True,
        }

    def parser(self) -> Parser[T]:
        """A parser for one file."""
        return _CsvParser(self)


def checked_format(source: str, given: Format[Any] | None) -> Format[Any]:
    """The format of a source, `TextLines()` when none is given; `ValueError` for what is none."""
    form = TextLines() if given is None else given
    if isinstance(form, type) or not hasattr(form, "parser"):
        raise ValueError(f"source {source}: format={given!r:.80}: give a format, for example JsonLines(dict)")
    return form


def value_type(form: Format[Any]) -> Any:
    """The type of a format's values; None when it does not say."""
    if isinstance(form, TextLines):
        return str
    if isinstance(form, Csv) and form.type is None and not form.header and form.columns is None:
        return list
    return getattr(form, "type", None)


def field_names(type: Any) -> list[str]:
    """The names by which a struct's or dataclass's fields are read."""
    info = msgspec.inspect.type_info(type)
    fields = getattr(info, "fields", None)
    if fields is None:
        raise ValueError(f"{type!r} has no fields; give Csv(columns=[...]) or a Struct")
    return [field.encode_name for field in fields]


class _Record(msgspec.Struct):
    """One CSV record: lines [start, end), its fields or the reason why it has none."""

    start: int
    end: int
    fields: list[str]
    error: str | None = None


class _CsvParser:
    def __init__(self, form: Csv) -> None:
        self.memory: Any = None
        self._form = form

    def parse(self, lines: list[bytes], row: int, limit: int, final: bool) -> Parsed:
        records = self._plain(lines[:limit]) or self._quoted(lines, limit, final)
        end = records[-1].end if records else 0
        if end == len(records):
            raws: list[bytes] = lines[:end]
        else:
            raws = [b"\n".join(lines[r.start : r.end]) for r in records]
        if self._form.header and row == 0 and records:
            self.memory = self.memory or records[0].fields
            self._check_header(records[0].fields)
            records[0].fields = []
        parsed = self._values(raws, records)
        parsed.lines = end
        return parsed

    def _check_header(self, names: list[str]) -> None:
        if any("\udc80" <= mark <= "\udcff" for name in names for mark in name):  # what "surrogateescape" makes
            raise SourceError(f"the header is not {self._form.encoding}; give its encoding to Csv, or convert the file")
        twice = sorted(name for name in {*names} if names.count(name) > 1)
        if twice and self._form.columns is None:
            raise SourceError(f"the header names column {twice[0]!r} twice; give columns=[...] to Csv")

    def _plain(self, lines: list[bytes]) -> list[_Record] | None:
        """When no field is quoted, every line is a record."""
        text = decode_lines(lines, self._form.encoding) if lines else []
        quote = self._form.dialect["quotechar"]
        if text is None or (quote is not None and any(quote in line for line in text)):
            return None
        try:
            rows = list(csv.reader(text, **self._form.dialect))
        except csv.Error:
            return None
        return [_Record(index, index + 1, fields) for index, fields in enumerate(rows)]

    def _quoted(self, lines: list[bytes], limit: int, final: bool) -> list[_Record]:
        records: list[_Record] = []
        start = 0
        while start < len(lines) and len(records) < limit:
            for record in self._records_from(lines, start):
                cut = oversized_at(lines, record)
                if cut is None and not final and record.error == UNENDED and record.end == len(lines):
                    return records
                if cut is not None:
                    record = _Record(record.start, cut, [], f"longer than {VALUE_LIMIT_BYTES} bytes")
                records.append(record)
                start = record.end
                if cut is not None or len(records) == limit:
                    break
        return records

    def _records_from(self, lines: list[bytes], start: int) -> Iterator[_Record]:
        encoding = self._form.encoding
        feed = (line.decode(encoding, "surrogateescape") + "\n" for line in lines[start:])
        reader = csv.reader(feed, **self._form.dialect)
        end = start
        while end < len(lines):
            begin, fields, error = end, [], None
            try:
                fields = next(reader)
            except csv.Error as problem:
                error = str(problem)
            end = start + reader.line_num
            yield _Record(begin, end, fields, error)

    def _values(self, raws: list[bytes], records: list[_Record]) -> Parsed:
        try:
            if all(record.fields and record.error is None for record in records):
                values = self._convert_all(raws, records)
                return Parsed(0, raws, range(len(raws)), values, [])
        except (MalformedError, msgspec.MsgspecError):
            pass
        return convert_each(raws, lambda index: self._one(raws[index], records[index]))

    def _convert_all(self, raws: list[bytes], records: list[_Record]) -> list[Any]:
        decode_text(b"\n".join(raws), self._form.encoding)
        values = [self._named(record.fields) for record in records]
        if self._form.type is not None:
            values = msgspec.convert(values, list[self._form.type], strict=False)  # type: ignore[name-defined]
        return values

    def _one(self, raw: bytes, record: _Record) -> Any:
        if record.error is not None:
            raise MalformedError(record.error)
        decode_text(raw, self._form.encoding)
        if not record.fields:
            raise BlankError
        value = self._named(record.fields)
        if self._form.type is None:
            return value
        try:
            return msgspec.convert(value, self._form.type, strict=False)
        except msgspec.MsgspecError as error:
            raise MalformedError(str(error)) from error

    def _named(self, fields: list[str]) -> Any:
        names = self._form.columns or self.memory
        if names is None:
            return fields
        if len(names) != len(fields):
            raise MalformedError(f"{len(fields)} fields, expected {len(names)}")
        return dict(zip(names, fields, strict=True))


def oversized_at(lines: list[bytes], record: _Record) -> int | None:
    """The line after the one that makes a record longer than the limit, or None."""
    size = 0
    for index in range(record.start, record.end):
        size += len(lines[index]) + 1
        if size > VALUE_LIMIT_BYTES or isinstance(lines[index], Oversized):
            return index + 1
    return None
