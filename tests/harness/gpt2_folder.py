# SPDX-License-Identifier: Apache-2.0
"""A small GPT-2 as transformers saves it, made without transformers."""

import json
import math
import re
import shutil
import struct

from tap import SOURCE

POSITIONS = 128


def safetensors(path, shapes, random=None):
    """float32 zeros, but for ones where a norm's weight is; with `random` (a random.Random) noise on both."""
    head, data = {}, b""
    for name, shape in shapes.items():
        one, count = re.search(r"ln_\w\.weight", name) is not None, math.prod(shape)
        values = struct.pack(f"<{count}f", *(one + (random.gauss(0, 0.1) if random else 0) for _ in range(count)))
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def model(folder, vocab, c, heads, random=None):
    """config.json and the weights, of one layer."""
    (folder / "config.json").write_text(json.dumps(dict(model_type="gpt2", n_layer=1, n_head=heads, n_embd=c,
                                                        n_positions=POSITIONS, vocab_size=vocab)))
    layers = {"attn.c_attn": (c, 3 * c), "attn.c_proj": (c, c), "mlp.c_fc": (c, 4 * c), "mlp.c_proj": (4 * c, c),
              "ln_1": (c,), "ln_2": (c,)}
    shapes = {"wte.weight": (vocab, c), "wpe.weight": (POSITIONS, c), "ln_f.weight": (c,), "ln_f.bias": (c,)}
    for name, shape in layers.items():
        shapes.update({f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]})
    safetensors(folder / "model.safetensors", {f"transformer.{name}": shape for name, shape in shapes.items()}, random)


def gpt2(folder):
    """As transformers saves one, with the vocabulary of the tests."""
    shutil.copytree(SOURCE / "tests/unit/tokenizer/fixture/gpt2", folder)
    model(folder, 1 + max(json.loads((folder / "vocab.json").read_text()).values()), 4, 2)
