# SPDX-License-Identifier: Apache-2.0
"""Reads TensorBoard's event files by the formats' documentation alone: TFRecord, protobuf, event.proto.

Raises AssertionError where a file is not what the documentation says.
"""

import struct

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


def _table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


TABLE = list(_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    """The messages of a TFRecord file."""
    at = 0
    while at < len(data):
        length, length_crc = struct.unpack_from("<QI", data, at)
        assert length_crc == masked(data[at:at + 8]), f"the length at byte {at} is damaged"
        message = data[at + 12:at + 12 + length]
        assert len(message) == length, f"the record at byte {at} is cut"
        crc, = struct.unpack_from("<I", data, at + 12 + length)
        assert crc == masked(message), f"the record at byte {at} is damaged"
        yield message
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """(number, wire type, value) of a protobuf message."""
    at = 0
    while at < len(data):
        head, at = varint(data, at)
        kind = head & 7
        if kind == VARINT:
            value, at = varint(data, at)
        else:
            length = {EIGHT: 8, FOUR: 4}.get(kind)
            if kind == BYTES:
                length, at = varint(data, at)
            assert length is not None and at + length <= len(data), f"wire type {kind}, length {length}"
            value, at = data[at:at + length], at + length
        yield head >> 3, kind, value


def summary_of(data):
    scalars = {}
    for number, kind, value in fields(data):
        assert (number, kind) == (1, BYTES), "Summary has values only"
        tag = number_ = None
        for part, part_kind, part_value in fields(value):
            if part == 1:
                assert part_kind == BYTES
                tag = part_value.decode()
            else:
                assert (part, part_kind) == (2, FOUR), "simple_value is field 2, a float"
                number_, = struct.unpack("<f", part_value)
        assert tag and tag not in scalars and number_ is not None
        scalars[tag] = number_
    return scalars


def events(path):
    """Each event of a file: {"wall_time", "step", and "version", "scalars" or "session"}."""
    for message in records(path.read_bytes()):
        event = {"step": 0}
        for number, kind, value in fields(message):
            if number == 1:
                assert kind == EIGHT
                event["wall_time"], = struct.unpack("<d", value)
            elif number == 2:
                assert kind == VARINT
                event["step"] = value
            elif number == 3:
                event["version"] = value.decode()
            elif number == 5:
                event["scalars"] = summary_of(value)
            elif number == 7:
                event["session"] = {part: part_value for part, _, part_value in fields(value)}
            else:
                raise AssertionError(f"field {number} of an event")
        yield event


def scalars_of_folder(folder):
    """{tag: {step: value}} as TensorBoard shows a folder: files in the order of their names, and a
    SessionLog START drops what came before from its step on."""
    shown = {}
    for path in sorted(folder.glob("*tfevents*")):
        first = True
        for event in events(path):
            assert first == ("version" in event), "the version stands first, and only there"
            assert not first or event["version"] == "brain.Event:2"
            first = False
            if event.get("session", {}).get(1) == 1:
                for steps in shown.values():
                    for step in [s for s in steps if s >= event["step"]]:
                        del steps[step]
            for tag, value in event.get("scalars", {}).items():
                steps = shown.setdefault(tag, {})
                assert event["step"] not in steps, f"{tag} of step {event['step']} stands twice"
                steps[event["step"]] = value
    return shown
