# SPDX-License-Identifier: Apache-2.0
"""programs/generate: it writes what transformers writes, and the same for the same seed; past the
context, in whole characters, to a stop token or a signal."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE.parent / "python")]
from sentences import says, sentence
from tap import BUILD, SOURCE, Skip, command, run, test
from jobs import pythons_with, with_transformers

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-generate-")
FOLDER = pathlib.Path(SCRATCH.name)
SHAPE = ("--layers", 1, "--dim", 16, "--heads", 2, "--context", 16)
TEXT = "abcdefghijklmnopqrstuvwxyz\n" * 40
LETTERS = json.dumps({
    "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")}, "merges": []},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
    "decoder": {"type": "ByteLevel"}})

THEIRS = """
import sys, torch, transformers
torch.manual_seed(5)
folder, vocab, tokens, *prompts = sys.argv[1:]
config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=32, n_positions=64, vocab_size=int(vocab),
                                 layer_norm_epsilon=1e-3)
model = transformers.GPT2LMHeadModel(config).eval()
with torch.no_grad():
    for name, value in model.named_parameters():
        value.add_(0.3 * torch.randn_like(value))
model.save_pretrained(folder)
for prompt in prompts:
    ids = torch.tensor([[int(i) for i in prompt.split(",")]])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=int(tokens),
                         do_sample=False, pad_token_id=0, eos_token_id=None)
    print("ids", *out[0, ids.shape[1]:].tolist())
"""


def generate(*flags, status=0, **more):
    done = subprocess.run([BUILD / "programs/generate", *map(str, flags)], cwd=FOLDER, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, **more)
    assert done.returncode == status, (flags, done.returncode, done.stdout, done.stderr)
    done.text = done.stdout.decode("utf-8")  # strictly: never half a character
    return done


def trained():
    """A byte GPT that has learned a little: flags that name its checkpoint."""
    if not (FOLDER / "run").exists():
        (FOLDER / "text").write_text(TEXT)
        command(BUILD / "programs/train_gpt", "--data", "text", *SHAPE, "--steps", 150, "--batch", 8, "--lr", 1e-2,
                "--save", "run", "--export", "run.safetensors", cwd=FOLDER)
    return ("--checkpoint", "run", *SHAPE)


def random_gpt(dim=16):
    """An untrained byte GPT, of every byte about as likely."""
    name = f"random-{dim}"
    if not (FOLDER / name).exists():
        (FOLDER / "text").write_text(TEXT)
        command(BUILD / "programs/train_gpt", "--data", "text", *SHAPE, "--dim", dim, "--steps", 1, "--batch", 1, "--lr",
                0, "--save", name, cwd=FOLDER)
    return ("--checkpoint", name, *SHAPE, "--dim", dim)


def python():
    found = pythons_with("transformers", "torch", "safetensors", "numpy")
    if not found:
        raise Skip("no Python here has torch, transformers and safetensors")
    return found[-1][0]


def theirs(folder, vocab, tokens, *prompts):
    out = with_transformers(python(), THEIRS, FOLDER / folder, vocab, tokens, *[",".join(map(str, p)) for p in prompts])
    return [[int(i) for i in line.split()[1:]] for line in out.splitlines() if line.startswith("ids ")]


@test
def greedy_bytes_are_those_of_transformers():
    prompts = [b"a", b"the rank", "sch\u00f6n und l\u00e4nger".encode()]
    for prompt, ids in zip(prompts, theirs("bytes", 256, 40, *map(list, prompts))):
        ours = generate("--weights", "bytes", "--tokenizer", "bytes", "--greedy", "--tokens", 40, "--prompt", prompt.decode())
        assert ours.text == (prompt + bytes(ids)).decode("utf-8", "replace") + "\n", (prompt, ids, ours.text)


THEIR_READING = """
import sys, torch, transformers
kind, folder, *ids = sys.argv[1:]
model, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
assert not any(info.values()), info
print("dropout", model.config.attention_probs_dropout_prob if "Masked" in kind else model.config.attn_pdrop)
if ids:
    ids = torch.tensor([[int(i) for i in ids]])
    out = model.eval().generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False,
                                pad_token_id=0, eos_token_id=None)
    print("ids", *out[0, ids.shape[1]:].tolist())
"""


@test
def an_exported_folder_is_one_that_save_pretrained_wrote():
    prompt = "klmn"
    [_] = theirs("theirs-small", 256, 1, prompt.encode())
    (FOLDER / "text").write_text(TEXT)
    command(BUILD / "programs/train_gpt", "--model", "gpt2", "--init", "theirs-small", "--data", "text", "--context", 32,
            "--steps", 60, "--lr", 3e-3, "--dropout", 0.25, "--save", "small", "--export", "ours/", cwd=FOLDER)
    out = with_transformers(python(), THEIR_READING, "AutoModelForCausalLM", FOLDER / "ours", *prompt.encode())
    assert "dropout 0.25" in out, out
    ids = bytes(int(i) for i in re.search(r"^ids (.*)", out, re.M).group(1).split())
    assert len(set(ids)) > 5, ids  # not one letter again and again
    for given in (("--weights", "ours"), ("--checkpoint", "small")):
        assert generate(*given, "--prompt", prompt, "--greedy", "--tokens", 24).text == prompt + ids.decode("latin-1") + "\n"
    command(BUILD / "programs/train_bert", "--data", "text", "--layers", 1, "--dim", 16, "--heads", 2, "--context", 16,
            "--steps", 1, "--dropout", 0.25, "--export", "bert/", cwd=FOLDER)
    assert "dropout 0.25" in with_transformers(python(), THEIR_READING, "AutoModelForMaskedLM", FOLDER / "bert")


@test
def a_checkpoint_and_an_exported_folder_need_no_flag_again():
    folder = trained()[1]
    with_flags = generate("--checkpoint", folder, *SHAPE, "--prompt", "hijk", "--greedy", "--tokens", 20).text
    assert generate("--checkpoint", folder, "--prompt", "hijk", "--greedy", "--tokens", 20).text == with_flags
    said = generate("--checkpoint", folder, "--heads", 4, "--prompt", "h", status=2).stderr.decode()
    assert f"--heads 4 contradicts the checkpoints in \"{folder}\", whose model has --heads 2" in said, said
    command(BUILD / "programs/train_gpt", "--resume", folder, "--steps", 150, "--export", "exported/", cwd=FOLDER)
    assert generate("--weights", "exported", "--prompt", "hijk", "--greedy", "--tokens", 20).text == with_flags
    (FOLDER / "exported/tokenizer.json").write_text(LETTERS)  # of an earlier export
    assert generate("--weights", "exported", "--prompt", "hijk", "--greedy", "--tokens", 20).text == with_flags
    said = generate("--weights", "exported/model.safetensors", "--prompt", "h", status=1).stderr.decode()
    assert len(said) < 400, said
    says(said, '--weights: "%s" does not hold model %s of %lld layers and width %lld. Give --model (as gpt2) and the sizes with '
               'which it was trained, or the folder that --export DIR/ or save_pretrained wrote, whose files say them')
    record = json.loads((FOLDER / folder / "run.json").read_text())
    shutil.copytree(FOLDER / folder, FOLDER / "older")
    (FOLDER / "older/run.json").write_text(json.dumps(dict(record, flags=dict(record["flags"], format="tokens"))))
    says(generate("--checkpoint", "older", "--prompt", "h", status=2).stderr.decode(),
         'the model in "%s" learned from shards of tokens, whose tokenizer it does not know; give --tokenizer')
    (FOLDER / "older/run.json").unlink()
    older = generate("--checkpoint", "older", *SHAPE, "--prompt", "hijk", "--greedy", "--tokens", 20)
    assert older.text == with_flags
    says(older.stderr.decode(), "%s: no run.json, because an earlier version saved there; the model is taken to be as --model, "
                                "--layers, --dim, --heads, --context and --tokenizer say")


@test
def an_exported_folder_has_the_tokenizer_of_the_run():
    """Also where a tokenizer.json of another model lies beside it, or OpenAI's names are used."""
    home = FOLDER / "tokenizers"
    for folder in (home / "openai", home / "usual"):
        folder.mkdir(parents=True)
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    (home / "letters.json").write_text(LETTERS)
    (home / "usual/tokenizer.json").write_text(LETTERS)
    (home / "openai/encoder.json").write_text(json.dumps({c: i for i, c in enumerate(alphabet)}))
    (home / "openai/vocab.bpe").write_text("#version: 0.2\n")
    backwards = json.loads(LETTERS)
    backwards["model"]["vocab"] = {c: i for i, c in enumerate(reversed(alphabet))}
    (home / "tokenizer.json").write_text(json.dumps(backwards))
    (FOLDER / "alphabet").write_text(alphabet * 60)
    for number, given in enumerate(("letters.json", "openai", "usual/tokenizer.json", "usual", "bytes")):
        name = given if given == "bytes" else f"../{given}"
        (home / "work").mkdir(exist_ok=True)
        (home / "work/tokenizer.json").write_text(json.dumps(backwards))
        command(BUILD / "programs/train_gpt", "--data", FOLDER / "alphabet", "--tokenizer", name, *SHAPE, "--steps", 100, "--lr",
                1e-2, "--export", f"{FOLDER}/whole{number}/", cwd=home / "work")
    shutil.rmtree(home)
    for number in range(4):
        assert generate("--weights", f"whole{number}", "--prompt", "hijk", "--greedy", "--tokens", 12).text == "hijklmnopqrstuvw\n"
    assert not (FOLDER / "whole4/tokenizer.json").exists()  # of bytes


@test
def a_folder_with_another_tokenizer_takes_no_export():
    """Who reads the folder would take it for that of the weights."""
    merges, there = FOLDER / "merges", FOLDER / "taken"
    merges.mkdir(), there.mkdir()
    (merges / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz")}))
    (merges / "merges.txt").write_text("#version: 0.2\n")
    (there / "tokenizer.json").write_text(LETTERS)
    (FOLDER / "letters").write_text("abcdefghijklmnopqrstuvwxyz" * 60)
    for given in (merges, "bytes"):
        train = (BUILD / "programs/train_gpt", "--data", FOLDER / "letters", "--tokenizer", given, *SHAPE, "--steps", 1, "--export",
                 f"{there}/")
        done = subprocess.run([str(word) for word in train], text=True, capture_output=True)
        assert done.returncode == 1, done
        says(done.stderr, '--export %s: "%s" is there, and the tokenizer of this run has no such file to replace it; remove it, or '
                          'give another folder')
    assert [path.name for path in there.iterdir()] == ["tokenizer.json"]
    (there / "tokenizer.json").unlink()
    for _ in range(2):  # the second time over the first one's files
        command(BUILD / "programs/train_gpt", "--data", FOLDER / "letters", "--tokenizer", merges, *SHAPE, "--steps", 1, "--export",
                f"{there}/")
    assert sorted(path.name for path in there.iterdir() if "token" in path.name or path.stem in ("vocab", "merges")) == [
        "merges.txt", "vocab.json"]


@test
def greedy_words_are_those_of_transformers():
    source = SOURCE / "tests/unit/tokenizer/fixture/gpt2"
    reader = "import sys, tokenizers\n" \
             "t = tokenizers.ByteLevelBPETokenizer(sys.argv[1] + '/vocab.json', sys.argv[1] + '/merges.txt')\n"
    if pythons_with("tokenizers", "transformers") == []:
        raise Skip("no Python here has transformers and tokenizers")
    ids, count = command(python(), "-c", reader + "print(*t.encode('the bucket waits').ids); print(t.get_vocab_size())",
                         source).splitlines()
    want = theirs("words", count, 30, ids.split())[0]
    text = command(python(), "-c", reader + "print(ascii(t.decode(list(map(int, sys.argv[2:])), skip_special_tokens=False)))",
                   source, *ids.split(), *want)
    for name in ("vocab.json", "merges.txt"):  # beside the weights: found by itself
        (FOLDER / "words" / name).write_bytes((source / name).read_bytes())
    ours = generate("--weights", "words", "--greedy", "--tokens", 30, "--prompt", "the bucket waits")
    assert ascii(ours.text[:-1]) == text.strip(), (ascii(ours.text), text)


THEIR_LLAMA = """
import json, pathlib, sys, torch, transformers
folder, source, *prompts = sys.argv[1:]
torch.manual_seed(5)
whole = json.loads(pathlib.Path(source).read_text())
start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
whole["post_processor"] = {"type": "TemplateProcessing", "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
(pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(whole))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json")
config = transformers.LlamaConfig(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32,
                                  intermediate_size=64, max_position_embeddings=64, vocab_size=len(tokenizer))
model = transformers.LlamaForCausalLM(config).eval()
with torch.no_grad():
    for value in model.parameters():
        value.mul_(4)
    model.lm_head.weight[:259] = 0  # no special token, and no byte
model.save_pretrained(folder)
for prompt in prompts:
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    assert ids[0, 0] == 1, ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0,
                         eos_token_id=None)
    print("said", ascii("".join(tokenizer.convert_ids_to_tokens(out[0, ids.shape[1]:])).replace("\u2581", " ")))
"""


def check_forms_of_rope(path, text):
    """What transformers 5 takes: "rope_scaling" alone where it is given, with "rope_theta" in it or beside it."""
    plain, linear, texts = text(), {"rope_type": "linear", "factor": 4.0}, []
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    for form in ({"rope_theta": 50.0, "rope_scaling": linear}, {"rope_scaling": dict(linear, rope_theta=50.0)},
                 {"rope_theta": 50, "rope_scaling": {"type": "linear", "factor": 4}},
                 {"rope_scaling": {}, "rope_parameters": dict(linear, rope_theta=50.0)},
                 {"rope_theta": 50.0, "rope_scaling": linear, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}):
        path.write_text(json.dumps(dict(config, **form)))
        texts.append(text())
    assert set(texts) == {texts[0]} != {plain}, (plain, texts)


@test
def a_llama_reads_the_token_before_its_prompt_that_transformers_puts_there():
    (FOLDER / "spaced").mkdir()
    prompts = ["the bucket waits", "  of", ""]
    out = with_transformers(python(), THEIR_LLAMA, FOLDER / "spaced",
                            SOURCE / "tests/unit/tokenizer/fixture/pieces/tokenizer.json", *prompts)
    wanted = [line.removeprefix("said ") for line in out.splitlines() if line.startswith("said ")]
    for prompt, want in zip(prompts, wanted, strict=True):
        greedy = ("--weights", "spaced", "--greedy", "--tokens", 24, "--prompt")
        assert ascii(generate(*greedy, prompt).text[len(prompt):-1]) == want, (prompt, want)
        if prompt:  # it is not put there twice
            assert ascii(generate(*greedy, "<s>" + prompt).text[3 + len(prompt):-1]) == want, (prompt, want)
    check_forms_of_rope(FOLDER / "spaced/config.json", lambda: generate(*greedy, prompts[0]).text)


def with_head(path, change):
    """The file has lm_head.weight as well: its table, to whose bytes `change` is done."""
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    header, data = json.loads(whole[8:start]), whole[start:]
    table = header["model.embed_tokens.weight"]
    begin, end = table["data_offsets"]
    header["lm_head.weight"] = dict(table, data_offsets=[len(data), len(data) + end - begin])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data + change(data[begin:end]))


@test
def a_tied_model_with_another_head_in_its_file_is_made_with_both():
    trained()
    command(BUILD / "programs/train_gpt", "--model", "llama", "--tied", *SHAPE, "--data", "text", "--steps", 2, "--batch", 2,
            "--export", "tied/", cwd=FOLDER)
    (FOLDER / "tied/run.json").unlink()  # as if transformers had saved it
    weights, config = FOLDER / "tied/model.safetensors", FOLDER / "tied/config.json"
    plain, wanted = weights.read_bytes(), sentence(
        'config.json beside "%s" says "tie_word_embeddings", but lm_head.weight differs from model.embed_tokens.weight; the model '
        'is made with both')

    def made():
        done = generate("--weights", "tied", "--tokenizer", "bytes", "--greedy", "--tokens", 12, "--prompt", "the ")
        return done.text, done.stderr.decode()

    text, said = made()
    with_head(weights, lambda table: table)
    assert made()[0] == text and "lm_head" not in said + made()[1], (text, said)
    weights.write_bytes(plain)
    with_head(weights, lambda table: table[len(table) // 2:] + table[:len(table) // 2])
    other, said = made()
    says(said, wanted)
    assert other != text, text
    config.write_text(json.dumps(dict(json.loads(config.read_text()), tie_word_embeddings=False)))
    assert made()[0] == other and "lm_head" not in made()[1], other


@test
def a_published_model_ends_a_text_where_its_folder_says_so():
    trained()
    command(BUILD / "programs/train_gpt", "--model", "llama", *SHAPE, "--data", "text", "--steps", 60, "--batch", 8, "--lr", 1e-2,
            "--export", "ends/", cwd=FOLDER)
    (FOLDER / "ends/run.json").unlink()  # as if transformers had saved it
    path, generation = FOLDER / "ends/config.json", FOLDER / "ends/generation_config.json"
    config = json.loads(path.read_text())
    assert config["eos_token_id"] is None, config

    def written(*flags):
        return generate("--weights", "ends", "--tokenizer", "bytes", "--greedy", "--tokens", 24, "--prompt", "hijk", *flags).text[4:-1]

    whole = written()
    end = whole[-1]
    assert len(whole) == 24, whole
    for ends in (ord(end), [300, ord(end)]):
        path.write_text(json.dumps(dict(config, eos_token_id=ends)))
        assert written() == whole[:whole.index(end)], (ends, written(), whole)
    generation.write_text(json.dumps({"eos_token_id": 300}))
    assert written() == whole
    generation.write_text(json.dumps({"temperature": 0.5}))
    assert written() == whole[:whole.index(end)]
    for wrong in ("</s>", [-1], list(range(20)), [None]):
        path.write_text(json.dumps(dict(config, eos_token_id=wrong)))
        says(generate("--weights", "ends", "--tokenizer", "bytes", "--prompt", "h", status=1).stderr.decode(),
             '"%s": "eos_token_id" is neither a token nor a list of at most %d; is it damaged?')


@test
def a_trained_model_writes_what_it_has_learned():
    greedy = generate(*trained(), "--prompt", "hijk", "--greedy", "--tokens", 60).text
    assert greedy[:-1] in TEXT and len(greedy) == 65, greedy
    weights = generate("--weights", "run.safetensors", *SHAPE, "--prompt", "hijk", "--greedy", "--tokens", 60)
    assert weights.text == greedy
    assert generate(*trained(), "--prompt", "hijk", "--temperature", 0, "--tokens", 60).text == greedy
    assert generate(*trained(), "--prompt", "hijk", "--top-k", 1, "--tokens", 60).text == greedy
    assert generate(*trained(), "--prompt", "hijk", "--top-p", 0, "--tokens", 60).text == greedy


@test
def a_trained_model_writes_the_same_with_weights_of_fewer_bits():
    for model in (trained(), ("--weights", "run.safetensors", *SHAPE)):
        texts = [generate(*model, "--prompt", "hijk", "--greedy", "--tokens", 60, "--dtype", dtype).text
                 for dtype in ("float32", "bf16", "int8")]
        assert texts[0][:-1] in TEXT and set(texts) == {texts[0]}, texts


@test
def the_same_seed_gives_the_same_text():
    flags = (*random_gpt(), "--tokens", 50, "--prompt", "a")
    first = generate(*flags, "--seed", 3).text
    assert generate(*flags, "--seed", 3).text == first
    assert generate(*flags, "--seed", 4).text != first
    assert generate(*flags, "--seed", 3, env=dict(os.environ, OMP_NUM_THREADS="1")).text == first


@test
def a_text_goes_on_past_the_context():
    text = generate(*trained(), "--prompt", TEXT[:70], "--greedy", "--tokens", 100).text
    assert len(text) == 171 and text.startswith(TEXT[:70])
    assert text[:-1] in TEXT, text
    assert generate(*trained(), "--prompt", "ab", "--tokens", 0).text == "ab\n"
    one = (*SHAPE[:-2], "--context", 1)
    (FOLDER / "text").write_text(TEXT)
    command(BUILD / "programs/train_gpt", "--data", "text", *one, "--steps", 1, "--batch", 1, "--save", "one", cwd=FOLDER)
    assert generate("--checkpoint", "one", *one, "--prompt", "abc", "--tokens", 9, "--stop", "\n")


@test
def characters_are_whole_whatever_bytes_are_drawn():
    for seed in range(3):
        raw = generate(*random_gpt(), "--tokens", 300, "--prompt", "\u20ac", "--seed", seed)
        assert "\ufffd" in raw.text and raw.text.startswith("\u20ac"), raw.text


@test
def a_text_ends_at_the_stop_token_and_not_behind_it():
    done = generate(*trained(), "--prompt", "hijk", "--greedy", "--tokens", 60, "--stop", "x")
    assert done.text == "hijklmnopqrstuvw\n", done.text
    assert re.search(rb"^12 tokens, ", done.stderr), done.stderr
    says(done.stderr.decode(), ", %.1f tokens/s after the first, which took %.2f s")


@test
def a_signal_ends_it_after_a_whole_character_with_what_was_written():
    flags = map(str, (*random_gpt(), "--tokens", 10**8, "--prompt", "begin"))
    with subprocess.Popen([BUILD / "programs/generate", *flags], cwd=FOLDER, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        begun = process.stdout.read(64)  # it writes: the handler stands
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert (begun + rest).decode("utf-8").endswith("\n")
    says(said.decode(), "stopped by a signal;")


@test
def a_program_that_cannot_be_executed_is_named():
    folder = FOLDER / "broken"
    (folder / "programs").mkdir(parents=True)
    shutil.copy(BUILD / "lockstep", folder / "lockstep")
    program = folder / "programs/generate"
    program.write_text("neither machine code nor a script")
    program.chmod(0o755)
    done = subprocess.run([folder / "lockstep", "generate"], text=True, capture_output=True, timeout=60)
    assert done.returncode == 1 and str(program) in done.stderr, done
    says(done.stderr, 'lockstep: "%s" cannot be started: %s')


@test
def what_cannot_be_is_refused_in_words():
    trained()
    (FOLDER / "other").mkdir(exist_ok=True)
    (FOLDER / "other/config.json").write_text('{"model_type": "bert"}')
    (FOLDER / "bare/config.json").mkdir(parents=True, exist_ok=True)
    (FOLDER / "torn").mkdir(exist_ok=True)
    if not (FOLDER / "pipe/config.json").exists():
        (FOLDER / "pipe").mkdir()
        os.mkfifo(FOLDER / "pipe/config.json")  # without a writer
    (FOLDER / "torn/config.json").write_text('{"model_type": ')
    (FOLDER / "relu").mkdir(exist_ok=True)
    (FOLDER / "relu/config.json").write_text('{"model_type": "gpt2", "activation_function": "relu"}')
    for name, width in (("wide", 10**7), ("wider", 10**12)):
        (FOLDER / name).mkdir(exist_ok=True)
        (FOLDER / name / "config.json").write_text(json.dumps(dict(
            model_type="gpt2", n_layer=1, n_head=2, n_embd=width, n_positions=16, vocab_size=256)))
    (FOLDER / "odd").mkdir(exist_ok=True)
    (FOLDER / "odd/config.json").write_text(json.dumps(dict(
        model_type="gpt2", n_layer=1, n_head=2, n_embd=4, n_positions=16, vocab_size=256, scale_attn_by_inverse_layer_idx=True)))
    for name, more in (("sliding", {"sliding_window": 8}), ("scaled", {"rope_scaling": {"factor": 2.0}}),
                       ("yarn", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn"}}),
                       ("grouped", {"num_key_value_heads": 3})):
        (FOLDER / name).mkdir(exist_ok=True)
        (FOLDER / name / "config.json").write_text(json.dumps(dict(
            model_type="mixtral", num_hidden_layers=1, num_attention_heads=4, hidden_size=8, intermediate_size=8,
            num_local_experts=2, num_experts_per_tok=1, max_position_embeddings=16, vocab_size=256, **more)))
    for name, more in (("biased", {"attention_bias": True}), ("mlp-biased", {"mlp_bias": True}),
                       ("far", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}), ("dynamic", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}), ("theta", {"rope_theta": "1e4"}),
                       ("faster", {"rope_scaling": {"type": "linear", "factor": 0.5}}),
                       ("part", {"rope_scaling": {"type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.5}),
                       ("parts", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25}}),
                       ("unscaled", {"partial_rotary_factor": 0.5}),
                       ("wordless", {"rope_scaling": {"rope_type": "default"}}), ("stringy", {"rope_scaling": "llama3"})):
        (FOLDER / name).mkdir(exist_ok=True)
        (FOLDER / name / "config.json").write_text(json.dumps(dict(
            model_type="llama", num_hidden_layers=1, num_attention_heads=4, hidden_size=8, intermediate_size=8,
            max_position_embeddings=16, vocab_size=256, **more)))
    (FOLDER / "long").mkdir(exist_ok=True)
    (FOLDER / "long/config.json").write_text(" " * (1 << 21))
    for status, words, *flags in (
            (2, "no model given: use --weights"),
            (2, sentence("--weights and --checkpoint are both given, and each names a model; leave one of them out"),
             "--weights", "a", "--checkpoint", "b"),
            (2, '--context 8 contradicts the checkpoints in "run", whose model has --context 16', *trained(), "--context", 8),
            (2, sentence('"%s" is a single checkpoint; give --%s the folder above it, "%s", of which the newest checkpoint is '
                         'loaded'), "--checkpoint", "run/step-00000150"),
            (2, 'give --checkpoint the folder above it, "run", of', "--weights", "run/step-00000150//"),
            (2, '--model is "lstm"; give gpt, moe, llama, mixtral, gpt2', "--weights", "a", "--model", "lstm"),
            (2, '--dtype is "int4"; give float32, bf16 or int8', "--weights", "a", "--dtype", "int4"),
            (2, '--top-p is "2"; give a number from 0 to 1', "--top-p", 2),
            (2, '--temperature is "-1"', "--temperature", -1),
            (2, "--greedy is a switch and takes no value", "--greedy=1"),
            (2, '--stop is "nothing", which is not a token', *trained(), "--stop", "nothing"),
            (2, sentence("--padded sends an expert all its capacity; give --capacity, as 1.25"), "--weights", "run.safetensors",
             "--model", "moe", "--padded"),
            (1, sentence('--checkpoint: "%s" does not exist; give the folder that lockstep train gpt --save made'), "--checkpoint",
             "nowhere"),
            (1, '"nowhere', "--weights", "nowhere"),
            (1, sentence('"%s" cannot be read: %s'), "--weights", "bare", "--tokenizer", "bytes"),
            (2, '--dim 32 contradicts the checkpoints in "run", whose model has --dim 16', *trained(), "--dim", 32),
            (1, sentence('"%s": "model_type" is "%s"; give a gpt2, a llama or a mixtral'), "--weights", "other"),
            (1, sentence('"%s": "%s" is "%s"; only "%s" is supported'), "--weights", "relu"),
            (1, '"activation_function" is "relu"', "--weights", "relu"),
            (1, sentence('"%s": "%s" is given, which is not computed here'), "--weights", "sliding"),
            (1, "rotary positions are scaled (by a factor)", "--weights", "scaled"),
            (1, sentence('"%s": rotary positions are scaled (%s), which is not computed here; give a model with "rope_type" '
                         '"llama3", "linear" or "default"'), "--weights", "dynamic"),
            (1, sentence("by a factor below 1"), "--weights", "faster"),
            (1, sentence('"%s": "%s" of the rotary positions is missing; is it damaged?'), "--weights", "far"),
            (1, sentence('"%s": "%s" is %g, and scaled rotary positions of a part of each head are not computed here; give a '
                         'model without it'), "--weights", "part"),
            (1, '"partial_rotary_factor" is 0.25', "--weights", "parts"),
            (1, "(--tokenizer names another tokenizer)", "--weights", "unscaled"),
            (1, '"attention_bias" is not false', "--weights", "biased"),
            (1, '"mlp_bias" is not false', "--weights", "mlp-biased"),
            (1, "rotary positions are scaled (yarn)", "--weights", "yarn"),
            (1, "(--tokenizer names another tokenizer)", "--weights", "wordless"),
            (1, sentence('"%s": "%s" is no object; is it damaged?'), "--weights", "stringy"),
            (1, sentence('"%s": "%s" is no number above 0; is it damaged?'), "--weights", "theta"),
            (2, sentence('--%s contradicts "%s", whose model has %lld; leave it out'), "--weights", "grouped", "--layers", 5),
            (2, sentence('--model %s contradicts "%s", whose model is %s; leave it out'), "--weights", "grouped", "--model",
             "llama"),
            (2, sentence("--%s is for --model %s, and this is %s; leave it out, or give --model"), "--weights",
             "run.safetensors", "--experts", 4),
            (2, "--kv-heads is for --model llama or mixtral, and this is gpt", "--weights", "run.safetensors", "--kv-heads", 1),
            (2, "--tied is for --model llama, and this is mixtral", "--weights", "run.safetensors", "--model", "mixtral",
             "--tied"),
            (2, sentence("--%s: the sizes of %s are the published ones; leave it out, or give --model gpt"), "--weights",
             "run.safetensors", "--model", "gpt2", "--layers", 2),
            (2, sentence("--heads %lld is not a multiple of --kv-heads %lld"), "--weights", "grouped"),
            (1, "torn/config.json\", line 1", "--weights", "torn"),
            (1, "pipe/config.json\" is not a regular file; give the path of a regular file", "--weights", "pipe"),
            (1, sentence("a %s of %lld layers, width %lld and %lld tokens, as config.json says, takes %.2f GB, and %.2f GB "
                      "of memory are left; is it damaged?"), "--weights", "wide", "--tokenizer", "bytes"),
            (1, '"n_embd" is missing or not a count', "--weights", "wider", "--tokenizer", "bytes"),
            (1, sentence('"%s": "%s" is missing or not a count; is it a GPT-2\'s, a Llama\'s or a Mixtral\'s?'), "--weights", "wider", "--tokenizer", "bytes"),
            (1, sentence('"%s": "%s" is not %s, which is not computed here'), "--weights", "odd", "--tokenizer", "bytes"),
            (1, sentence('"%s" has more than %d bytes; is it a config.json?'), "--weights", "long", "--tokenizer", "bytes"),
            (1, "the prompt has token 122, the model has 100 tokens", "--weights", "run.safetensors", *SHAPE, "--vocab",
             100, "--prompt", "z")):
        done = generate(*flags, status=status)
        says(done.stderr.decode(), words)
        assert not done.stdout, done.stdout
    says(generate("--weights", "long", status=1).stderr.decode(), '"%s" has more than %d bytes; is it a config.json?')


@test
def an_empty_prompt_needs_a_token_to_begin_with():
    (FOLDER / "letters.json").write_text(LETTERS)
    (FOLDER / "letters").write_text("abcdefghijklmnopqrstuvwxyz" * 40)
    command(BUILD / "programs/train_gpt", "--data", "letters", "--tokenizer", "letters.json", *SHAPE, "--steps", 1,
            "--batch", 1, "--save", "of-letters", cwd=FOLDER)
    done = generate("--checkpoint", "of-letters", "--tokenizer", "letters.json", *SHAPE, status=2)
    says(done.stderr.decode(), "--prompt is empty and the tokenizer has no <|endoftext|> to begin with; give a prompt")


@test
def several_ranks_are_refused():
    done = subprocess.run([BUILD / "lockstep", "run", "-n", "2", BUILD / "programs/generate", *map(str, trained())],
                          cwd=FOLDER, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode == 2, done.stdout
    says(done.stdout, "%d ranks were started; one writes a text: run it without lockstep run")


# Of a pod, or of a shell in which another job was started: the other three ranks will never come.
STALE = {**os.environ, "RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "9",
         "LOCKSTEP_TIMEOUT": "20"}


@test
def variables_that_another_job_left_make_no_command_of_one_process_wait():
    done = generate("--checkpoint", "run", *SHAPE, "--tokens", 5, env=STALE)
    assert done.stderr.decode().count("\n") == 1, done.stderr
    for words in (["bench", "step", "--model", "mlp", "--steps", "1"],
                  ["plan", "profile", "gpt", "--data", "text", *map(str, SHAPE), "--steps", "1", "--out", "profile"],
                  ["paper", "arithmetic"]):
        done = subprocess.run([BUILD / "lockstep", *words], cwd=FOLDER, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, env=STALE)
        assert done.returncode == 0 and "waiting" not in done.stderr, (words, done)


run()
