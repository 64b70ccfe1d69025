#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Made tests/unit/tokenizer/fixture with the `tokenizers` package (0.23; pip install tokenizers):

    gpt2/        vocab.json, merges.txt: GPT-2's form      json/      the same as tokenizer.json
    split/       an expression of its own (that of GPT-4 and Llama 3), whole words, special tokens
    one_word/    no expression, so that a build without PCRE2 reads it; a space before each text
    pieces/      Llama 2's form: a space is "▁", and bytes are tokens of their own
    ids.json     texts (as hexadecimal UTF-8) and their ids with each
"""

import json
import pathlib
import shutil

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import fuzz_texts

HERE = pathlib.Path(__file__).resolve().parent
FIXTURE = HERE / "fixture"
SOURCE = HERE.parent.parent.parent
END = "<|endoftext|>"
EXPRESSION = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def trained(pre, size, **options):
    """On the licence and the fuzzed texts' words."""
    made = Tokenizer(models.BPE(**options))
    made.pre_tokenizer = pre
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    text = (SOURCE / "LICENSE").read_text()
    made.train_from_iterator([text, " ".join(fuzz_texts.WORDS * 3)], trainer)
    return made


def pieces(size):
    """Llama 2's form: its special tokens, the bytes, and then what a trainer finds."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.Metaspace()
    found.train_from_iterator([(SOURCE / "LICENSE").read_text(), " ".join(fuzz_texts.WORDS[:40] * 3)],
                              trainers.BpeTrainer(vocab_size=size, show_progress=False))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = json.loads(found.to_str())["model"]
    tokens += sorted(model["vocab"], key=model["vocab"].get)
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(m) for m in model["merges"]],
                                unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[:3]])
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                      decoders.Strip(" ", 1, 0)])
    return made


def save(name, made):
    folder = FIXTURE / name
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"), pretty=False)
    with open(folder / "tokenizer.json", "a") as file:
        file.write("\n")


def main():
    shutil.rmtree(FIXTURE, ignore_errors=True)
    FIXTURE.mkdir()
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain = trained(level, 700)
    (FIXTURE / "gpt2").mkdir()
    plain.model.save(str(FIXTURE / "gpt2"))
    with open(FIXTURE / "gpt2/vocab.json", "a") as file:
        file.write("\n")
    save("json", plain)

    split = trained(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(EXPRESSION), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 600, ignore_merges=True)
    split.add_special_tokens(["<|end of turn|>", "<|x|>"])
    split.add_tokens([AddedToken("<|x|>y", normalized=False), AddedToken("naïve", normalized=True),
                      AddedToken("of", normalized=True)])
    save("split", split)

    save("one_word", trained(pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False), 400))

    save("pieces", pieces(400))

    texts = [t for t in fuzz_texts.texts(150, seed=5) if t]
    rows = []
    for text in texts:
        row = {"text": text.encode().hex()}
        for name in ("json", "split", "one_word", "pieces"):
            made = Tokenizer.from_file(str(FIXTURE / name / "tokenizer.json"))
            row[name] = made.encode(text, add_special_tokens=False).ids
        rows.append(row)
    (FIXTURE / "ids.json").write_text(
        "[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]\n")
    print(f"tokenizers {tokenizers.__version__}: {len(rows)} texts")


main()
