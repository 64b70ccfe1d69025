#!/usr/bin/env python3
"""Writes scikit-learn's bundled digits (1797 images of 8x8, 10 classes) as MNIST-style IDX files.

    scripts/make_digits_idx.py FOLDER

makes FOLDER/{train,test}-{images,labels}.idx: every fifth sample is a test sample. Nothing is
downloaded. Needs scikit-learn (Debian: python3-sklearn).
"""
import pathlib
import struct
import sys

IDX_UINT8 = 0x08
TEST_EVERY = 5


def write_idx(path, array):
    """A big-endian header (two zeros, the type, the number of dimensions, each of them) and bytes."""
    header = struct.pack(">BBBB", 0, 0, IDX_UINT8, array.ndim)
    header += struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.tobytes())


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        sys.exit("scikit-learn is missing: apt install python3-sklearn, or pip install scikit-learn")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    # Pixels are counts 0..16; IDX readers expect 0..255.
    images = (digits.images * (255.0 / 16.0)).round().astype("uint8")
    labels = digits.target.astype("uint8")
    for part in ("train", "test"):
        chosen = [i for i in range(len(labels)) if (i % TEST_EVERY == 0) == (part == "test")]
        write_idx(folder / f"{part}-images.idx", images[chosen])
        write_idx(folder / f"{part}-labels.idx", labels[chosen])
        print(f"{folder}/{part}-images.idx: {len(chosen)} images")


if __name__ == "__main__":
    main()
