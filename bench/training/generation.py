# SPDX-License-Identifier: Apache-2.0
"""GPT-2 (124 million parameters, random values) in CTranslate2; run by bench/compare_generation.py.

    generation.py make FOLDER                 writes it for lockstep (gpt2/) and for CTranslate2 (float32/, int8/)
    generation.py time FOLDER TYPE THREADS TOKENS  prints tokens/s after the first, and the first one's seconds
"""

import json
import os
import pathlib
import struct
import sys
import time

LAYERS, DIM, HEADS, VOCAB, CONTEXT, PROMPT = 12, 768, 12, 50257, 1024, 64


def weights():
    import numpy as np
    random = np.random.default_rng(0)

    def matrix(rows, columns):
        return 0.02 * random.standard_normal((rows, columns), dtype=np.float32)

    def vector(size, value):
        return np.full(size, value, np.float32)
    out = {"transformer.wte.weight": matrix(VOCAB, DIM), "transformer.wpe.weight": matrix(CONTEXT, DIM)}
    for norm in [f"transformer.h.{i}.ln_{n}" for i in range(LAYERS) for n in (1, 2)] + ["transformer.ln_f"]:
        out.update({norm + ".weight": vector(DIM, 1), norm + ".bias": vector(DIM, 0)})
    for i in range(LAYERS):
        for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4), ("mlp.c_proj", 4, 1)):
            out[f"transformer.h.{i}.{name}.weight"] = matrix(rows * DIM, columns * DIM)
            out[f"transformer.h.{i}.{name}.bias"] = vector(columns * DIM, 0)
    return out


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, value in tensors.items():
        head[name] = {"dtype": "F32", "shape": value.shape, "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.tobytes())


def write_ctranslate2(folder, tensors, kind):
    import numpy as np
    from ctranslate2.specs import common_spec, transformer_spec
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(LAYERS, HEADS, pre_norm=True,
                                                                    activation=common_spec.Activation.GELUTanh)
    decoder = spec.decoder

    def linear(to, name):
        to.weight = np.ascontiguousarray(tensors[name + ".weight"].T)
        to.bias = tensors[name + ".bias"]

    def norm(to, name):
        to.gamma, to.beta = tensors[name + ".weight"], tensors[name + ".bias"]
    decoder.scale_embeddings = False
    decoder.embeddings.weight = decoder.projection.weight = tensors["transformer.wte.weight"]
    decoder.position_encodings.encodings = tensors["transformer.wpe.weight"]
    norm(decoder.layer_norm, "transformer.ln_f")
    for i, layer in enumerate(decoder.layer):
        block = f"transformer.h.{i}."
        norm(layer.self_attention.layer_norm, block + "ln_1")
        norm(layer.ffn.layer_norm, block + "ln_2")
        for to, name in ((layer.self_attention.linear[0], "attn.c_attn"), (layer.self_attention.linear[1], "attn.c_proj"),
                         (layer.ffn.linear_0, "mlp.c_fc"), (layer.ffn.linear_1, "mlp.c_proj")):
            linear(to, block + name)
    spec.register_vocabulary([f"t{i}" for i in range(VOCAB)])
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "t0", "t1", "t2"
    spec.validate()
    spec.optimize(quantization=kind)
    folder.mkdir()
    spec.save(str(folder))


def make(folder):
    tensors = weights()
    (folder / "gpt2").mkdir(parents=True)
    write_safetensors(folder / "gpt2/model.safetensors", tensors)
    (folder / "gpt2/config.json").write_text(json.dumps(dict(
        model_type="gpt2", n_layer=LAYERS, n_head=HEADS, n_embd=DIM, n_positions=CONTEXT, vocab_size=VOCAB,
        activation_function="gelu_new", layer_norm_epsilon=1e-5)))
    for kind in ("float32", "int8"):
        write_ctranslate2(folder / kind, tensors, kind)


def measure(folder, kind, threads, tokens):
    import ctranslate2
    generator = ctranslate2.Generator(str(folder / kind), compute_type=kind, intra_threads=threads, inter_threads=1)

    def seconds(count):
        start = time.perf_counter()
        out = generator.generate_batch([[f"t{100 + 7 * i}" for i in range(PROMPT)]], max_length=count, min_length=count,
                                       sampling_topk=1, include_prompt_in_result=False)
        assert len(out[0].sequences_ids[0]) == count
        return time.perf_counter() - start
    seconds(2)
    first, all_ = seconds(1), seconds(tokens)
    print((tokens - 1) / (all_ - first), first)


if __name__ == "__main__":
    os.environ.setdefault("CT2_VERBOSE", "-1")
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]))
    else:
        measure(pathlib.Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
