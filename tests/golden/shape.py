# SPDX-License-Identifier: Apache-2.0
"""The shape of a message: the call or file it is about, what was found there, and what to do.

    npy: "a.npy" holds no elements; give another file
    asked  found                    advice

A message that breaks a rule for a good reason is listed in shape_exceptions.txt by its format in the source, under the
name of the rule.
"""

import re

from sentences import CONVERSION, pattern

# Failures that the caller can mend. Others (no memory, a dead rank, a full disk) have no advice to give.
MENDABLE = {"LS_ERR_INVALID", "LS_ERR_FORMAT", "LS_ERR_LIMIT", "LS_ERR_MISMATCH", "LS_ERR_STATE", "LS_ERR_NOT_FOUND",
            "LS_ERR_UNSUPPORTED", "LS_ERR_STALE", "LS_ERR_FORKED", "NULL"}
VERBS = ("add|ask|build|call|change|check|choose|convert|copy|delete|do not|download|end|fill|free|give|install|"
         "leave|look|lower|make|move|name|omit|pass|put|read|remove|rename|return|run|save|say|see|set|start|"
         "unset|unzip|use|wait|wrap|write")
ORDER = re.compile(rf"(?:{VERBS})\b")
# What was given: a number, a name in quotes, a shape, a constant, a type, a word of the system; or that it is absent.
EVIDENCE = re.compile(r"""\d|["'`]|\[|--\w|\b(?:NULL|LS_\w+|nan|inf|float32|bfloat16)\b|<\w+>|: [A-Z][a-z]+|\b(?:no|not|"""
                      r"nothing|none|never|neither|without|missing|empty|already|twice|both|before|after|cannot|only|too|"
                      r"differ\w*|another|itself|needs?|needed|failed|freed|overlap|unknown|scalar|by rank|under way|mixed|"
                      r"part of|no longer|out of|memory)\b")
ADVICE = re.compile(rf"; \S+ \S|\?$|\b(?:must|needs?|expected|at most|supported)\b|[:,] (?:{VERBS})\b")
PLACE = re.compile(r"(?:rank \d+ failed: )?(?:[\w./]+\.[ch]:<line>: )?")
# An operation, a rank or a file in place of "call: ".
SUBJECT = re.compile(r'[\w ]+(?:#\d+|"[^"]*")|rank \d+ \(|LOCKSTEP_\w+=|ls_\w+ |".*?" |no memory|cannot |<tmp>')


def parts(message):
    """(asked, found): the advice follows the first semicolon."""
    message = PLACE.sub("", message, count=1)
    first = message.split("; ")[0]
    asked, colon, found = first.partition(": ")
    return (asked, found) if colon else ("", first)


def of_any(text):
    """Faults that no line of output may have."""
    if CONVERSION.search(text.replace("%%", "")) and re.search(r"%[-0-9.*]*(?:ll|z|h)?[dusxfgc]\b", text):
        yield "a conversion is left"
    if "(null)" in text:
        yield "(null)"
    if text != text.rstrip():
        yield "a blank at its end"


def of_message(status, message):
    """Rules that a message breaks."""
    asked, found = parts(message)
    if ORDER.match(found) and SUBJECT.match(asked):  # "rank 1 (…) exited: start …"
        asked, found = "", asked
    if not asked and not SUBJECT.match(PLACE.sub("", message, count=1)):
        yield "asked"
    if ORDER.match(found) or not EVIDENCE.search(found):
        yield "found"
    if status in MENDABLE and not ADVICE.search(message):
        yield "advice"
    if message.endswith((".", ",", ";", ":")) or "  " in message or message[:1].isspace():
        yield "one sentence"


def of_usage(message):
    """Rules that "lockstep COMMAND: what is wrong; see lockstep COMMAND --help" breaks."""
    asked, found = parts(message)
    if not asked:
        yield "asked"
    if not ORDER.match(found) and not EVIDENCE.search(found):
        yield "found"
    if not message.endswith("--help") and not ADVICE.search(message):
        yield "advice"


class Exceptions:
    """Formats by rule; `used` collects those that some message needed."""

    def __init__(self, path):
        self.formats, self.used, rule = {}, set(), None
        for line in path.read_text().splitlines():
            if line.startswith("["):
                rule = line[1:].partition("]")[0]
            elif line and not line.startswith("#"):
                self.formats.setdefault(rule, []).append(line)

    def allow(self, rule, message):
        found = [format for format in self.formats.get(rule, ()) if pattern(format).search(message)]
        self.used.update((rule, format) for format in found)
        return bool(found)

    def unused(self):
        return [f"[{rule}] {format}" for rule, formats in self.formats.items() for format in formats
                if (rule, format) not in self.used]
