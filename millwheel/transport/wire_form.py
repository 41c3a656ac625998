"""Messages of hosts as bytes, and back (proto/channel.proto).

Lives here: the form of every `Message`.  A bundle is columns of a protobuf message: its records cost 0.1 us each to decode
that way, and five times as much as rows.  All other messages have a few fields and change often, so one protobuf message
carries them by the name of their class, with their fields as MessagePack; a new message needs no line here.  Never here:
sockets, or what messages mean.  Invariants:

* `decoded(encoded(message)) == message` for every message;
* what cannot be decoded raises `WireError` and nothing else, whatever the bytes are.
"""

from __future__ import annotations

from itertools import islice
from operator import ge
from typing import Any, Final, get_args

import msgspec
from google.protobuf.message import DecodeError

from millwheel.bundles import Bundle
from millwheel.errors import WireError
from millwheel.host.messages import Delivery, Message
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.transport.proto import channel_pb2 as pb

WIRE_VERSION: Final = 1
"""Both ends of a stream must have the same (`Greeting.version`)."""

KINDS: Final = {kind.__name__: kind for kind in get_args(Message)}
"""Every message by the name under which it travels."""

_TOLD: Final = {name: msgspec.msgpack.Decoder(kind) for name, kind in KINDS.items() if kind is not Delivery}
_ENCODER: Final = msgspec.msgpack.Encoder()


def encoded(message: Message) -> bytes:
    """The bytes of a message; raises `WireError` for one that has no wire form, such as a number above 64 bits."""
    try:
        if isinstance(message, Delivery):
            return pb.Envelope(delivery=_delivery(message)).SerializeToString()
        return pb.Envelope(
            told=pb.Told(kind=type(message).__name__, fields=_ENCODER.encode(message))
        ).SerializeToString()
    except (ValueError, TypeError, OverflowError) as error:
        raise WireError(f"a {type(message).__name__} cannot be sent: {error}") from error


def decoded(data: bytes) -> Message:
    """The message that `data` is; raises `WireError` for anything else."""
    try:
        envelope = pb.Envelope.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are no message: {error}") from error
    if envelope.HasField("delivery"):
        return _bundle(envelope.delivery)
    if envelope.HasField("told"):
        return _message(envelope.told)
    raise WireError(f"a message of {len(data)} bytes has no body that this release knows")


def _delivery(message: Delivery) -> dict[str, Any]:
    """The fields of a `pb.Delivery`.  As one, it would be copied into its envelope, column by column."""
    bundle = message.bundle
    return {
        "sequencer": message.sequencer,
        "metered": message.metered,
        "subscription": bundle.subscription,
        "sender": bundle.sender,
        "number": bundle.number,
        "target": bundle.target,
        "producer": bundle.producer,
        "frontier": bundle.frontier,
        "epoch": bundle.epoch,
        "sequences": bundle.sequences,
        "keys": bundle.keys,
        "values": bundle.values,
        "timestamps": bundle.timestamps,
        "outside": bundle.outside,
        "barrier": bundle.barrier,
        "inherited": bundle.inherited,
    }


def _bundle(form: pb.Delivery) -> Delivery:
    sequences, keys, values = form.sequences[:], form.keys[:], form.values[:]
    timestamps, outside = form.timestamps[:], form.outside[:]
    lengths = {len(sequences), len(keys), len(values), len(timestamps)}
    if len(lengths) > 1 or (outside and len(outside) not in lengths):
        found = [len(column) for column in (sequences, keys, values, timestamps, outside)]
        raise WireError(f"the columns of a bundle have {found} entries, and should all have the same number")
    if any(map(ge, sequences, islice(sequences, 1, None))):
        raise WireError("the sequences of a bundle do not ascend")
    bundle = Bundle(
        subscription=SubscriptionId(form.subscription),
        sender=IntervalId(form.sender),
        number=form.number,
        target=IntervalId(form.target),
        producer=ProducerId(form.producer),
        frontier=SequenceNumber(form.frontier),
        sequences=sequence_numbers(sequences),
        keys=keys,
        values=values,
        timestamps=timestamps,
        epoch=form.epoch,
        outside=outside,
        barrier=form.barrier,
        inherited=form.inherited,
    )
    return Delivery(bundle, Sequencer(form.sequencer), form.metered)


def _message(form: pb.Told) -> Message:
    decoder = _TOLD.get(form.kind)
    if decoder is None:
        raise WireError(f"a message of the kind {form.kind!r:.80} is not known: run the same release everywhere")
    try:
        message: Message = decoder.decode(form.fields)
    except (ValueError, RecursionError) as error:  # what msgspec raises for malformed input
        raise WireError(f"the fields of a {form.kind} cannot be read: {error}") from error
    return message
