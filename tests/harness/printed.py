# SPDX-License-Identifier: Apache-2.0
"""Programs and the lines for them as pages print them."""

import re

from tap import SOURCE

DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name):
    return (SOURCE / name).read_text()


def listings(name):
    """{"pi.c": its text}"""
    return dict(re.findall(r"^```c\n/\* (\w+\.c) \*/\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL))


def patched(text, hunk):
    """`text` with a hunk of a diff applied, whose context must occur exactly once."""
    before = "".join(line[1:] + "\n" for line in hunk.splitlines() if line[0] in " -")
    after = "".join(line[1:] + "\n" for line in hunk.splitlines() if line[0] in " +")
    assert text.count(before) == 1, before
    return text.replace(before, after)


def ddp_listing():
    """The README's program with its diff."""
    return patched(listings("README.md")["local.c"], DIFF.search(page("README.md")).group(1))


def commands(name, word):
    """The one block of commands of a page that has the word."""
    found = [text for text in re.findall(r"^```sh\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL) if word in text]
    assert len(found) == 1, (name, word, found)
    return found[0]


def exports(name):
    """The line of a page that puts an installation or a build on the path."""
    found = re.findall(r"^export PATH=.*$", page(name), re.MULTILINE)
    assert len(found) == 1, (name, found)
    return found[0]
