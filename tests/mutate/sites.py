# SPDX-License-Identifier: Apache-2.0
"""Where a C file can be changed so that it says something else: planted changes, by rules on its text.

A rule is a pattern on the code of one line, with comments and the contents of strings blanked out,
and its replacement. Statements that hold a string (error texts, log lines), asserts, preprocessor
lines, and releases of memory are left alone: a change there alters words or leaks, and neither is
what these tests judge. The layout is clang-format's, so a binary operator stands between spaces.
"""

import hashlib
import re
from dataclasses import dataclass

HIDDEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
RELATIONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
# Calls whose loss changes no result: releases, words, hints to the processor.
IDLE_CALL = re.compile(r"free|fini|release|log|warn|assert|printf|describe|text|munmap|close|prefetch|advise|pause|yield", re.I)
IDLE_STATEMENT = re.compile(r"LS_ASSERT|_Static_assert|\bls__\w*(fail|log|warn|error)\w*\(|PLANTED|return -1;|= \{0\}|fd = -1")


def negated(match):
    return f"{match[1]}(!({match[2]})) {{"


def next_number(match):
    return str(int(match[0]) + 1)


def dropped_status(match):
    return f"{match[1]}return (void)({match[2]}), LS_OK;"


def without_call(match):
    return "" if IDLE_CALL.search(match[2]) else f"{match[1]};"


RULES = (  # name, pattern, replacement (a text or a function; an unchanged or empty line is no site)
    ("relation", re.compile(r"(?<= )(<=|>=|==|!=|<|>)(?= )"), lambda m: RELATIONS[m[0]]),
    ("off by one", re.compile(r"(?<=[\w)\]]) [+-] 1\b(?![.\w])"), ""),
    ("plus to minus", re.compile(r"(?<=[\w)\]] )\+(?= [\w(])"), "-"),
    ("minus to plus", re.compile(r"(?<=[\w)\]] )-(?= [\w(])"), "+"),
    ("times to plus", re.compile(r"(?<=[\w)\]] )\*(?= [\w(])"), "+"),
    ("and to or", re.compile(r"&&"), "||"),
    ("or to and", re.compile(r"\|\|"), "&&"),
    ("condition negated", re.compile(r"(\bif |\bwhile )\((.*)\) \{$"), negated),
    ("constant", re.compile(r"(?<![\w.])\d+(?![\w.])"), next_number),
    ("status dropped", re.compile(r"^(\s+)LS_TRY\((.*)\);$"), lambda m: f"{m[1]}(void)({m[2]});"),
    ("status dropped", re.compile(r"^(\s+)return (ls_\w+\(.*\));$"), dropped_status),
    ("call deleted", re.compile(r"^(\s+)((?!return|sizeof|LS_TRY)[a-z_]\w*\(.*\);)$"), without_call),
    ("assignment deleted", re.compile(r"^(\s+)([\w>.\[\]-]+(?:->|\.|\])[\w>.\[\]-]* [-+|&]?= .*;)$"), without_call),
)


@dataclass(frozen=True)
class Site:
    path: str  # from the root of the sources
    line: int  # from 1
    rule: str
    before: str
    after: str
    key: str  # the same as long as the line is, wherever it stands


def blanked(text):
    """The code alone: what is hidden is spaces, a string keeps its quotes; as long as before."""
    def blank(match):
        found = match[0]
        inside = re.sub(r"[^\n]", " ", found)
        return inside if found[0] == "/" else found[0] + inside[1:-1] + found[0]
    return HIDDEN.sub(blank, text)


def left_alone(code):
    """The line numbers of statements that no rule may touch."""
    lines, number = set(), 1
    for part in re.split(r"(?<=[;{}])|(?<=\n)(?=#)", code):
        count = part.count("\n")
        macro = re.match(r"\s*#", part)
        if macro or '"' in part or IDLE_STATEMENT.search(part):
            lines.update(range(number, number + count + 1))
        number += count
    continued = False
    for at, line in enumerate(code.split("\n"), 1):
        if continued or line.startswith("#"):
            lines.add(at)
            continued = line.endswith("\\")
    return lines


def changes(code, text):
    """(rule, new line) of one line; the positions are found in the code, changed in the text."""
    for rule, pattern, replacement in RULES:
        for match in pattern.finditer(code):
            new = replacement(match) if callable(replacement) else replacement
            line = text[:match.start()] + new + text[match.end():]
            if line != text and line.strip():
                yield rule, line


def sites_of(path, text):
    """All sites of a file, each with a key that does not depend on the lines around it."""
    code = blanked(text)
    forbidden, seen = left_alone(code), {}
    for number, (bare, line) in enumerate(zip(code.split("\n"), text.split("\n")), 1):
        if number in forbidden or not bare.startswith(" "):
            continue
        for rule, new in changes(bare, line):
            what = f"{path}|{rule}|{line.strip()}|{new.strip()}"
            seen[what] = seen.get(what, 0) + 1
            key = hashlib.sha256(f"{what}|{seen[what]}".encode()).hexdigest()[:12]
            yield Site(path, number, rule, line, new, key)


def chosen(sites, seed):
    """All of them in the seed's order, which an edit elsewhere keeps: the rules in turn, a line once."""
    def place(site):
        return hashlib.sha256(f"{seed}|{site.key}".encode()).hexdigest()
    order, turns, lines = [], {}, set()
    for site in sorted(sites, key=place):
        if (site.path, site.line) not in lines:
            lines.add((site.path, site.line))
            turns[site.rule] = turns.get(site.rule, 0) + 1
            order.append((turns[site.rule], place(site), site))
    return [site for _, _, site in sorted(order, key=lambda entry: entry[:2])]
