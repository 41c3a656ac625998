from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("greeting", "whole", "part", "last")
    GREETING_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    greeting: Greeting
    whole: _containers.RepeatedScalarFieldContainer[bytes]
    part: bytes
    last: bool
    def __init__(self, greeting: _Optional[_Union[Greeting, _Mapping]] = ..., whole: _Optional[_Iterable[bytes]] = ..., part: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("version", "host", "peer", "process", "attempt")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    version: int
    host: str
    peer: str
    process: int
    attempt: int
    def __init__(self, version: _Optional[int] = ..., host: _Optional[str] = ..., peer: _Optional[str] = ..., process: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("delivery", "told")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    delivery: Delivery
    told: Told
    def __init__(self, delivery: _Optional[_Union[Delivery, _Mapping]] = ..., told: _Optional[_Union[Told, _Mapping]] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ("kind", "fields")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    fields: bytes
    def __init__(self, kind: _Optional[str] = ..., fields: _Optional[bytes] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("sequencer", "metered", "subscription", "sender", "number", "target", "producer", "frontier", "epoch", "sequences", "keys", "values", "timestamps", "outside", "barrier", "inherited")
    SEQUENCER_FIELD_NUMBER: _ClassVar[int]
    METERED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    FRONTIER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    INHERITED_FIELD_NUMBER: _ClassVar[int]
    sequencer: int
    metered: bool
    subscription: int
    sender: int
    number: int
    target: int
    producer: int
    frontier: int
    epoch: int
    sequences: _containers.RepeatedScalarFieldContainer[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    timestamps: _containers.RepeatedScalarFieldContainer[int]
    outside: _containers.RepeatedScalarFieldContainer[bytes]
    barrier: int
    inherited: bool
    def __init__(self, sequencer: _Optional[int] = ..., metered: _Optional[bool] = ..., subscription: _Optional[int] = ..., sender: _Optional[int] = ..., number: _Optional[int] = ..., target: _Optional[int] = ..., producer: _Optional[int] = ..., frontier: _Optional[int] = ..., epoch: _Optional[int] = ..., sequences: _Optional[_Iterable[int]] = ..., keys: _Optional[_Iterable[str]] = ..., values: _Optional[_Iterable[bytes]] = ..., timestamps: _Optional[_Iterable[int]] = ..., outside: _Optional[_Iterable[bytes]] = ..., barrier: _Optional[int] = ..., inherited: _Optional[bool] = ...) -> None: ...
