from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PushRequest(_message.Message):
    __slots__ = ("opening", "ids", "values", "timestamps")
    OPENING_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    opening: Opening
    ids: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    timestamps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, opening: _Optional[_Union[Opening, _Mapping]] = ..., ids: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ..., timestamps: _Optional[_Iterable[int]] = ...) -> None: ...

class Opening(_message.Message):
    __slots__ = ("version", "stream")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    version: int
    stream: str
    def __init__(self, version: _Optional[int] = ..., stream: _Optional[str] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("kept", "refused", "id_slack_us")
    KEPT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ID_SLACK_US_FIELD_NUMBER: _ClassVar[int]
    kept: int
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    id_slack_us: int
    def __init__(self, kept: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., id_slack_us: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("number", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    reason: str
    def __init__(self, number: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
