# SPDX-License-Identifier: Apache-2.0
"""Weights go both ways between Hugging Face's transformers and models/: what it saved is loaded here
and gives its logits, what is saved here it loads and gives ours, to 1e-4.

Needs a Python with torch, transformers and safetensors. With TEST_LONG=1 and torch alone the other
two are installed into a throwaway environment, and the models have their published sizes.
"""

import functools
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent)]
from jobs import BUILD, LONG, Skip, pythons_with, with_transformers
from tap import command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-transformers-")
FOLDER = pathlib.Path(SCRATCH.name)

THEIRS = """
import sys, pathlib, torch, transformers, safetensors.torch
kind, size, batch, tokens, folder = *sys.argv[1:3], *map(int, sys.argv[3:5]), pathlib.Path(sys.argv[5])
large = size == "large"
if kind == "gpt2":
    make, shape = transformers.GPT2LMHeadModel, {} if large else dict(
        n_layer=2, n_head=4, n_embd=32, n_positions=40, vocab_size=101)
    config = transformers.GPT2Config(**shape)
    sizes = config.n_layer, config.n_head, config.n_embd, config.n_positions, config.vocab_size
elif kind in ("llama", "llama3"):
    make = transformers.LlamaForCausalLM
    rope = {} if kind == "llama" else {"rope_parameters": dict(
        rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)}
    config = transformers.LlamaConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=64,
        rms_norm_eps=1e-5, tie_word_embeddings=True, max_position_embeddings=40, vocab_size=101, **rope)
    sizes = (config.num_hidden_layers, config.num_attention_heads, config.hidden_size,
             config.max_position_embeddings, config.vocab_size)
elif kind == "mixtral":
    make = transformers.MixtralForCausalLM
    config = transformers.MixtralConfig(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=64,
        num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=40, vocab_size=101)
    sizes = (config.num_hidden_layers, config.num_attention_heads, config.hidden_size,
             config.max_position_embeddings, config.vocab_size)
else:
    make, shape = transformers.BertForMaskedLM, {} if large else dict(
        num_hidden_layers=2, num_attention_heads=4, hidden_size=32, intermediate_size=128,
        max_position_embeddings=40, vocab_size=101)
    config = transformers.BertConfig(**shape)
    sizes = (config.num_hidden_layers, config.num_attention_heads, config.hidden_size,
             config.max_position_embeddings, config.vocab_size)
"""
FIRST = THEIRS + """
torch.manual_seed(3)
model = make(config).eval()
with torch.no_grad():
    for name, value in model.named_parameters():  # biases and norms matter, too
        value.add_(0.05 * torch.randn_like(value))
ids = torch.randint(config.vocab_size, (batch, tokens))
types = (torch.arange(tokens) > tokens // 2).long().expand(batch, tokens)
more = {} if kind != "bert" else {"token_type_ids": types}
with torch.no_grad():
    logits = model(input_ids=ids, **more).logits
planes = torch.stack([ids, types], 1) if more else ids
model.save_pretrained(folder / "model", max_shard_size="300MB" if large else "60KB")
safetensors.torch.save_file({"inputs": planes.contiguous(), "logits": logits.contiguous()},
                            folder / "inputs.safetensors")
print("sizes", *sizes)
"""
SECOND = THEIRS + """
given = safetensors.torch.load_file(folder / "inputs.safetensors")
ours = safetensors.torch.load_file(folder / "logits.safetensors")["logits"]
print("ours against theirs", (ours - given["logits"]).abs().max().item())
loaded, told = make.from_pretrained(folder / "saved", config=config, output_loading_info=True)
assert not told["unexpected_keys"] and not told["mismatched_keys"], told
assert not told["missing_keys"], told
planes = given["inputs"]
with torch.no_grad():
    again = (loaded.eval()(input_ids=planes) if kind != "bert" else
             loaded.eval()(input_ids=planes[:, 0], token_type_ids=planes[:, 1])).logits
print("theirs after our save", (again - ours).abs().max().item())
"""


def installed():
    """A Python with torch whose environment has the rest, made now."""
    found = pythons_with("torch", "numpy")
    if not LONG or not found:
        raise Skip("no Python here has torch, transformers and safetensors")
    python = found[-1][0]
    command(python, "-m", "venv", FOLDER / "venv")
    paths = command(python, "-c", "import site; print(*site.getsitepackages(), sep='\\n')")
    into = next((FOLDER / "venv").glob("lib/python3*/site-packages"))
    (into / "torch.pth").write_text(paths)
    done = subprocess.run([FOLDER / "venv/bin/pip", "install", "-q", "transformers", "safetensors"],
                          text=True, capture_output=True, timeout=280)
    if done.returncode != 0:
        raise Skip(f"cannot install transformers: {done.stderr.strip().splitlines()[-1]}")
    return FOLDER / "venv/bin/python"


@functools.lru_cache(None)
def python_with_all():
    found = pythons_with("transformers", "torch", "safetensors", "numpy")
    return found[-1][0] if found else installed()


def script(python, text, *arguments):
    return with_transformers(python, text, *arguments)


def distance(lines, what):
    return next(float(line.rsplit(" ", 1)[1]) for line in lines.splitlines()
                if line.startswith(what))


def both_ways(kind, python, size, batch, tokens):
    folder = FOLDER / f"{kind}-{size}"
    (folder / "saved").mkdir(parents=True)
    out = script(python, FIRST, kind, size, batch, tokens, folder)
    sizes = next(line for line in out.splitlines() if line.startswith("sizes ")).split()[1:]
    assert len(list((folder / "model").glob("*.safetensors"))) > 1, "one file; several were asked for"
    command(BUILD / "tests/unit/nn/foreign", kind, folder / "model", folder / "inputs.safetensors",
            folder / "logits.safetensors", folder / "saved/model.safetensors", batch, tokens, *sizes)
    for path in folder.glob("model/*config.json"):  # what else a folder of transformers has
        shutil.copy(path, folder / "saved")
    out = script(python, SECOND, kind, size, batch, tokens, folder)
    for what in ("ours against theirs", "theirs after our save"):
        assert distance(out, what) <= 1e-4, out


def sizes_to_test():
    return [("small", 3, 17)] + ([("large", 1, 64)] if LONG else [])


@test
def gpt2_goes_both_ways_with_transformers():
    python = python_with_all()
    for size in sizes_to_test():
        both_ways("gpt2", python, *size)


@test
def mixtral_goes_both_ways_with_transformers():
    """Names of the hub, with a file's tensor for each expert. The published sizes do not fit here."""
    both_ways("mixtral", python_with_all(), "small", 3, 17)


@test
def llama_goes_both_ways_with_transformers():
    both_ways("llama", python_with_all(), "small", 3, 17)
    both_ways("llama3", python_with_all(), "small", 3, 17)


@test
def bert_goes_both_ways_with_transformers():
    python = python_with_all()
    for size in sizes_to_test():
        both_ways("bert", python, *size)


run()
