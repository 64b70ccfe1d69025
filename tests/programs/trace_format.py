# SPDX-License-Identifier: Apache-2.0
"""What the trace event format asks of a file, and what Lockstep promises beyond it.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (complete events,
metadata, flow events), as Chrome and Perfetto read it.
"""

import collections
import json

NUMBER = (int, float)
PHASES = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "dur": NUMBER, "args": dict},
    "M": {"name": str, "pid": int, "args": dict},
    "s": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "id": int},
    "f": {"name": str, "cat": str, "pid": int, "tid": int, "ts": NUMBER, "id": int, "bp": str},
}
METADATA = {"process_name": ("name", str), "process_sort_index": ("sort_index", int),
            "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
SLACK = 0.0015  # a nanosecond and its rounding, in microseconds


def load(path):
    return json.loads(path.read_text())


def of_phase(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def spans(trace, category=None, rank=None):
    return [event for event in of_phase(trace, "X") if category in (None, event["cat"]) and
            rank in (None, event["pid"])]


def end(event):
    return event["ts"] + event["dur"]


def _types(event):
    expected = PHASES.get(event.get("ph"))
    if expected is None:
        yield f"phase of {event}"
        return
    for key, kind in expected.items():
        if not isinstance(event.get(key), kind) or isinstance(event.get(key), bool):
            yield f"{key} of {event}"
    if event["ph"] == "M":
        key, kind = METADATA.get(event["name"], (None, None))
        if key is None or not isinstance(event["args"].get(key), kind):
            yield f"arguments of {event}"
    if set(event) - set(expected) - {"ph"} - ({"tid"} if event["ph"] == "M" else set()):
        yield f"keys of {event}"


def _nesting(trace):
    """Spans of one track come in order of time, and lie within each other or apart."""
    tracks = collections.defaultdict(list)
    for event in spans(trace):
        tracks[event["pid"], event["tid"]].append(event)
    for track, events in tracks.items():
        open_spans, before = [], -1.0
        for event in events:
            if event["ts"] < before or event["ts"] < 0 or event["dur"] < 0:
                yield f"time of {event}"
            before = event["ts"]
            while open_spans and end(open_spans[-1]) <= event["ts"] + SLACK:
                open_spans.pop()
            if open_spans and end(event) > end(open_spans[-1]) + SLACK:
                yield f"{track}: {event} ends after {open_spans[-1]}"
            open_spans.append(event)


def _flows(trace):
    """Each arrow has one tail and one point, in this order, and both lie on a span."""
    ends = collections.defaultdict(list)
    for event in of_phase(trace, "s") + of_phase(trace, "f"):
        ends[event["name"], event["id"]].append(event)
        if not any(span["ts"] - SLACK <= event["ts"] <= end(span) + SLACK for span in spans(trace)
                   if (span["pid"], span["tid"]) == (event["pid"], event["tid"])):
            yield f"no span below {event}"
    for key, pair in ends.items():
        if [event["ph"] for event in pair] != ["s", "f"] or pair[1]["ts"] < pair[0]["ts"]:
            yield f"{key}: {pair}"


def _tracks(trace):
    """All tracks and processes have names, each once."""
    named = [(e["name"], e["pid"], e.get("tid")) for e in of_phase(trace, "M")]
    for name, count in collections.Counter(named).items():
        if count > 1:
            yield f"{name} {count} times"
    for event in spans(trace):
        for key in (("thread_name", event["pid"], event["tid"]), ("process_name", event["pid"], None)):
            if key not in named:
                yield f"{key} is missing"
                return


def problems(trace):
    """Everything that is wrong with a trace that json.load has read."""
    found = [f"keys {set(trace)}"] if not {"traceEvents", "otherData"} <= set(trace) else []
    for event in trace["traceEvents"]:
        found += _types(event)
    return found or [*_nesting(trace), *_flows(trace), *_tracks(trace)]
