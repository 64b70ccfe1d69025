# SPDX-License-Identifier: Apache-2.0
"""Random texts that are hard on a tokenizer: all of Unicode, white space of every kind, contractions, special
tokens whole and in part. The same seed gives the same texts."""

import random
import unicodedata

# What these characters are has not changed since Unicode 3.2, so that libraries agree on them.
SETTLED = [chr(c) for c in range(0x110000)
           if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs", "Co")
           and unicodedata.ucd_3_2_0.category(chr(c)) == unicodedata.category(chr(c))]
SPACES = list(" \t\n\r\v\f") + [chr(c) for c in (0x1c, 0x1f, 0x85, 0xa0, 0x1680, 0x180e, 0x2003, 0x200b, 0x2028,
                                                  0x2029, 0x202f, 0x205f, 0x3000, 0xfeff)]
WORDS = ("the The license work you may not Copyright 2004 http:// www don't we'll I'm he'd they're 'S it's "
         "O'Brien 'tis 'll've f(x)=a+b; int i=0; --- ... \"quoted\" naïve façade Straße ﬁ ſ İı 12345678901 "
         "３４ ½ ² ٣٤ 你好，世界 これは日本語です Привет мир مرحبا שלום नमस्ते สวัสดี 👩‍👩‍👧 🇩🇪 e\u0301 \u0301 \u200d").split(" ")
SPECIAL = ["<|endoftext|>", "<|endof", "text|>", "<|endoftext|", "<|end of turn|>", "<|end", "|>", "<|x|>", "<|x|>y"]


def text(rng):
    out = []
    for _ in range(rng.choice((0, 1, 2, 5, 10, 30))):
        kind = rng.random()
        if kind < 0.35:
            out.append(rng.choice(WORDS))
        elif kind < 0.55:
            out.append(rng.choice(SPACES) * rng.choice((1, 1, 1, 2, 5)))
        elif kind < 0.65:
            out.append(" ")
        elif kind < 0.75:
            out.append("".join(rng.choice(SETTLED) for _ in range(rng.choice((1, 2, 4)))))
        elif kind < 0.85:
            out.append(rng.choice("abcdefghij'.,!?0123456789_-#\0\x7f") * rng.choice((1, 2, 3, 40)))
        elif kind < 0.92:
            out.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 12))))
        else:
            out.append(rng.choice(SPECIAL))
    return "".join(out)


def texts(count, seed):
    rng = random.Random(seed)
    return [text(rng) for _ in range(count)]
