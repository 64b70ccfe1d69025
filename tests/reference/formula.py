# SPDX-License-Identifier: Apache-2.0
"""Numbers that look random and that formula.c makes, too: element i of `name`. No modules needed."""


def _hash(name):  # FNV-1a
    x = 2166136261
    for byte in name.encode():
        x = (x ^ byte) * 16777619 & 0xffffffff
    return x


def _mixed(x, i):  # 24 bits, by the mixing steps of lowbias32
    x = x + i * 0x9e3779b9 & 0xffffffff
    x = (x ^ x >> 16) * 0x7feb352d & 0xffffffff
    x = (x ^ x >> 15) * 0x846ca68b & 0xffffffff
    return (x ^ x >> 16) >> 8


def value(name, i):
    return _mixed(_hash(name), i) / 2.0**23 - 1.0  # [-1,1)


def values(name, count):
    """The first `count` of them."""
    x = _hash(name)
    return [_mixed(x, i) / 2.0**23 - 1.0 for i in range(count)]


def whole(name, i, below):
    return _mixed(_hash(name), i) * below >> 24  # 0...below-1
