# SPDX-License-Identifier: Apache-2.0
"""One dialect for conditions on pointers: p == NULL, p != NULL, and never !p or a bare p.

A function's pointers are those of its parameters and of its own declarations. Also rewrites files:
python3 tests/tidy/dialect.py FILE …
"""

import re

HIDDEN = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
FUNCTION = re.compile(r"^[A-Za-z_][^\n;={}]*?\([^;{}]*\)\n\{\n.*?^\}", re.DOTALL | re.MULTILINE)
PARAMETER = re.compile(r"\*\s*(?:const\s+|restrict\s+)?(\w+)\s*(?=[,)])")
LOCAL = re.compile(r"^\s+(?:const\s+|static\s+|struct\s+)*[A-Za-z_]\w*\s+(?:const\s+)?\*+(?:const\s+)?(\w+)\s*[;=,]",
                   re.MULTILINE)


ENDS = r"(?=\)|\s+(?:&&|\|\|))"
MORE = r"(?=\)|\s+(?:&&|\|\||\?)|;)"
ASKS = r"(?=\s+(?:\?|&&|\|\|))"
NEGATED = re.compile(r"!(\w+)\b(?!\s*[\(\[.]|->)")
BARE = re.compile(rf"(?:(?<=\bif \()|(?<=\bwhile \())(\w+){ENDS}|(?:(?<=&& )|(?<=\|\| ))(\w+){MORE}"
                  rf"|(?:(?<=return )|(?<=[^=!<>]= )|(?<=[:;] ))(\w+){ASKS}")


def rewritten(text):
    """The text with every condition on a pointer compared with NULL."""
    hidden = []

    def hide(match):
        hidden.append(match.group())
        return f"\0{len(hidden) - 1}\0"

    def function(match):
        body = match.group()
        names = set(PARAMETER.findall(body.split("\n{\n", 1)[0])) | set(LOCAL.findall(body))

        def compared(match, how):
            name = next(filter(None, match.groups()))
            return f"{name} {how} NULL" if name in names else match.group()

        body = NEGATED.sub(lambda match: compared(match, "=="), body)
        return BARE.sub(lambda match: compared(match, "!="), body)

    text = FUNCTION.sub(function, HIDDEN.sub(hide, text))
    return re.sub("\0(\\d+)\0", lambda match: hidden[int(match.group(1))], text)


if __name__ == "__main__":
    import pathlib
    import sys

    for path in map(pathlib.Path, sys.argv[1:]):
        before = path.read_text()
        if rewritten(before) != before:
            path.write_text(rewritten(before))
            print(path)
