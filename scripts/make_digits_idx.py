#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the digits of bench/digits/digits.txt (1797 images of 8x8, 10 classes) as MNIST-style IDX files.

    scripts/make_digits_idx.py FOLDER

makes FOLDER/{train,test}-{images,labels}.idx: every fifth sample is a test sample. Needs Python only.
"""
import pathlib
import struct
import sys

DIGITS = pathlib.Path(__file__).resolve().parent.parent / "bench/digits/digits.txt"
IDX_UINT8 = 0x08
SIDE, DARKEST = 8, 16
TEST_EVERY = 5


def read_digits():
    """(label, pixels of 0..255) of each line: the label, a blank, a character for each pixel, 0 to g."""
    for line in DIGITS.read_text().splitlines():
        label, pixels = line.split()
        yield int(label), bytes(round(int(pixel, DARKEST + 1) * 255 / DARKEST) for pixel in pixels)


def write_idx(path, shape, data):
    """A big-endian header (two zeros, the type, the number of dimensions, each of them) and bytes."""
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, IDX_UINT8, len(shape), *shape)
    path.write_bytes(header + data)


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    digits = list(read_digits())
    for part in ("train", "test"):
        chosen = [digit for i, digit in enumerate(digits) if (i % TEST_EVERY == 0) == (part == "test")]
        count = len(chosen)
        write_idx(folder / f"{part}-images.idx", (count, SIDE, SIDE), b"".join(pixels for _, pixels in chosen))
        write_idx(folder / f"{part}-labels.idx", (count,), bytes(label for label, _ in chosen))
        print(f"{folder}/{part}-images.idx: {count} images")


if __name__ == "__main__":
    main()
