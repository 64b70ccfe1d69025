# SPDX-License-Identifier: Apache-2.0
"""Sentences of the library in what a user reads: which texts a printf format can have made."""

import functools
import re

CONVERSION = re.compile(r"%(?:%|[-+#0]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|z|j)?[diouxXeEfgGacps])")
# What a conversion can have printed; where test_golden.py puts a kind for what varies: that, too.
PRINTED = {"d": r"(?:-?\d+|<\w+>)", "u": r"(?:\d+|<\w+>)", "x": r"(?:[0-9a-f]+|<\w+>)", "o": r"(?:[0-7]+|<\w+>)",
           "f": r"(?:-?[\d.]+|-?inf|-?nan|<\w+>)", "g": r"(?:-?[\d.]+(?:e[-+]?\d+)?|-?inf|-?nan|<\w+>)",
           "p": r"(?:0x[0-9a-f]+|\(nil\)|<\w+>)", "c": r".", "s": r".*?", "%": "%"}
PRINTED.update(i=PRINTED["d"], X=PRINTED["x"], e=PRINTED["g"], E=PRINTED["g"], G=PRINTED["g"], a=PRINTED["g"])


@functools.cache
def pattern(sentence):
    """Lines that hold the whole sentence: each conversion replaced by what it can print, no word cut at its ends."""
    sentence = sentence.strip()
    made, at = "", 0
    for match in CONVERSION.finditer(sentence):
        made += re.escape(sentence[at:match.start()]) + PRINTED[match.group(0)[-1]]
        at = match.end()
    made += re.escape(sentence[at:])
    return re.compile(("\\b" if re.match(r"\w", sentence) else "") + made + ("\\b" if re.search(r"\w$", sentence) else ""))


def sentence(format):
    """Marks a whole sentence in a table of those that are looked for by says()."""
    return format


def says(text, sentence):
    """Fails unless the text holds the whole sentence, given as its format in the source."""
    assert pattern(sentence).search(text), f"not said: {sentence!r}; the text is:\n{text}"
