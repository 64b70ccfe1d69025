# SPDX-License-Identifier: Apache-2.0
"""A copy of a static library whose hidden symbols are visible, for tests to link as a shared one.

    visible.py LIBRARY.a COPY.a

The objects of the library are compiled with -fvisibility=hidden, so that calls within it are direct and users see the
public functions only. The copy has the same code; only the visibility in its tables of symbols (ELF64) differs.
"""

import pathlib
import struct
import sys

SHT_SYMTAB = 2
SYMBOL_BYTES, OTHER = 24, 5  # of a symbol, and where its visibility is
HIDDEN_TO_DEFAULT = bytes(other - 2 if other & 3 == 2 else other for other in range(256))


def show(image):
    table, = struct.unpack_from("<Q", image, 0x28)
    entry_bytes, entries = struct.unpack_from("<HH", image, 0x3A)
    for entry in range(table, table + entries * entry_bytes, entry_bytes):
        if struct.unpack_from("<I", image, entry + 4)[0] == SHT_SYMTAB:
            at, length = struct.unpack_from("<QQ", image, entry + 0x18)
            others = slice(at + OTHER, at + length, SYMBOL_BYTES)
            image[others] = image[others].translate(HIDDEN_TO_DEFAULT)


def main(source, copy):
    library = bytearray(pathlib.Path(source).read_bytes())
    assert library.startswith(b"!<arch>\n"), source
    at = 8
    while at < len(library):
        bytes_of_member = int(library[at + 48:at + 58])
        at += 60
        if library[at:at + 4] == b"\x7fELF":
            image = library[at:at + bytes_of_member]
            show(image)
            library[at:at + bytes_of_member] = image
        at += bytes_of_member + bytes_of_member % 2
    pathlib.Path(copy).write_bytes(library)


main(*sys.argv[1:])
