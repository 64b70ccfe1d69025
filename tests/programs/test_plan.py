# SPDX-License-Identifier: Apache-2.0
"""The chains profile -> plan -> train and plan auto -> train: a plan runs as it is printed, and learns what --accum on one rank does."""

import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "harness"), str(HERE)]
from sentences import says, sentence
from tap import BUILD, command, run, test

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-plan-")
FOLDER = pathlib.Path(SCRATCH.name)
LOCKSTEP = BUILD / "lockstep"
STEPS, MICRO_BATCHES = 4, 6


def text():
    path = FOLDER / "text"
    if not path.exists():
        path.write_text("".join(letter * 3 for letter in "a rank sends a bucket and waits for it. ") * 60)
    return path


def images():
    folder = FOLDER / "images"
    if not folder.exists():
        folder.mkdir()
        for name, count in (("train", 120), ("test", 12)):
            pixels = bytes((i * 37 + j * j * (1 + i % 4)) % 256 for i in range(count) for j in range(64))
            (folder / f"{name}-images.idx").write_bytes(struct.pack(">HBBIII", 0, 8, 3, count, 8, 8) + pixels)
            (folder / f"{name}-labels.idx").write_bytes(struct.pack(">HBBI", 0, 8, 1, count) + bytes(i % 4 for i in range(count)))
    return folder


def gpt(layers=5):
    return ("gpt", "--data", text(), "--layers", layers, "--dim", 32, "--heads", 2, "--context", 16, "--batch", 2)


def image():
    return ("image", "--data", images(), "--classes", 4, "--batch", 2, "--model", "resnet18")


def profile(name, program, *flags):
    path = FOLDER / f"{name}.json"
    printed = command(LOCKSTEP, "plan", "profile", *program, *flags, "--threads", 1, "--out", path)
    assert f"{path}: " in printed, printed
    return path, json.loads(path.read_text())


def plan(profile_path, workers, *flags):
    path = FOLDER / "plan.json"
    printed = command(LOCKSTEP, "plan", "pipeline", profile_path, "--workers", workers, "--micro-batches", MICRO_BATCHES,
                      "--out", path, *flags)
    return printed, path, json.loads(path.read_text())


def losses(ranks, program, *flags):
    path = FOLDER / f"losses-{ranks}"
    kind, *own = program
    command(LOCKSTEP, "train", kind, "-n", ranks, *own, "--steps", STEPS, "--log-losses", path, *flags)
    return [float(line.split()[-1]) for line in path.read_text().splitlines()]


def refused(*arguments):
    done = subprocess.run([str(a) for a in (LOCKSTEP, *arguments)], text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=120)
    assert done.returncode != 0, done.stdout
    return done.stdout


def check_trained(program, ranks, path):
    """Sums over replicas are made in another order than on one rank."""
    want = losses(1, program, "--accum", MICRO_BATCHES)
    got = losses(ranks, program, "--plan", path)
    assert len(got) == STEPS and all(abs(a - b) < 1e-3 * a for a, b in zip(want, got)), (want, got)


@test
def a_profile_holds_every_part_with_its_times_and_bytes():
    _, found = profile("gpt", gpt())
    assert found["model"] == "gpt" and found["batch"] == 2 and found["machine"]["threads"] == 1, found
    assert [part["name"] for part in found["parts"]] == ["embed", *(f"blocks.{i}" for i in range(5)), "head"]
    for part in found["parts"][1:-1]:
        assert part["output_bytes"] == part["gradient_bytes"] == 2 * 16 * 32 * 4 and part["kept_bytes"] > part["output_bytes"], part
        assert min(part["forward_ms"], part["input_ms"], part["weight_ms"]) > 0, part


@test
def a_gpt_is_profiled_planned_and_trained_on_its_ranks():
    path, _ = profile("gpt", gpt())
    printed, path, made = plan(path, 4, "--bandwidth", "1gbit")
    assert f"plan {'-'.join(str(s['replicas']) for s in made['stages'])}: " in printed, printed
    check_trained(gpt(), made["workers"], path)


@test
def a_plan_with_replicas_is_trained_as_printed():
    path, found = profile("gpt", gpt())
    for k, part in enumerate(found["parts"]):  # three parts take long and have no parameters, the rest has many
        part.update(forward_ms=10 if k < 3 else 2, input_ms=10 if k < 3 else 2, weight_ms=10 if k < 3 else 3,
                    weight_bytes=1000 if k < 3 else 10**8)
    path.write_text(json.dumps(found))
    printed, path, made = plan(path, 4, "--bandwidth", "1gbit")
    assert [(s["first"], s["replicas"]) for s in made["stages"]] == [("embed", 3), ("blocks.2", 1)], printed
    assert "plan 3-1: 30 ms for each micro-batch of the job; the longest is the compute of stage 0." in printed, printed
    check_trained(gpt(), 4, path)


@test
def a_resnet_is_profiled_planned_and_trained_on_its_ranks():
    path, found = profile("resnet", image())
    assert found["model"] == "resnet" and len(found["parts"]) == 10, found
    _, path, made = plan(path, 4, "--bandwidth", "100mbit")
    check_trained(image(), made["workers"], path)


def shape(layers):
    """A text of bytes, so its vocabulary is 256."""
    return ("--layers", layers, "--dim", 32, "--heads", 2, "--context", 16)


def auto(layers, *flags, model="gpt"):
    path = FOLDER / "auto.json"
    printed = command(LOCKSTEP, "plan", "auto", model, *shape(layers), "--out", path, *flags)
    return printed, path, json.loads(path.read_text())


def auto_losses(ranks, layers, *flags):
    path = FOLDER / f"auto-losses-{ranks}"
    printed = command(LOCKSTEP, "train", "gpt", "-n", ranks, "--data", text(), *shape(layers), "--steps", STEPS, "--log-losses", path,
                      *flags)
    return printed, [float(line.split()[-1]) for line in path.read_text().splitlines()]


@test
def plan_auto_finds_a_plan_that_is_trained_as_printed():
    batch = 8
    _, want = auto_losses(1, 3, "--batch", batch)
    for mesh, ranks in (("pp=2", 2), ("dp=2", 2), ("tp=2", 2), ("pp=2,dp=2", 4), ("pp=2,tp=2", 4)):
        printed, path, made = auto(3, "--cluster", f"{ranks}:1gbit", "--batch", batch, "--mesh", mesh)
        assert made["version"] == 2 and made["workers"] == ranks, made
        replicas = 2 if "dp" in mesh else 1
        assert made["micro_batches"] * made["batch"] * replicas == batch, made
        assert re.search(rf"^  {made['mesh']} +[\d.e-]+ ", printed, re.M), printed
        trained, got = auto_losses(ranks, 3, "--plan", path)
        assert len(got) == STEPS and all(abs(a - b) < 1e-3 * a for a, b in zip(want, got)), (made, want, got)
        if "pp" in mesh:
            assert f"2 ranks run {made['schedule']}; " in trained, trained
        assert f" x {made['batch']} windows x {made['micro_batches']}" in trained, (made, trained)


EXPERTS = ("--experts", 4, "--top-k", 2)
MOE = ("--model", "moe", *EXPERTS)


@test
def plans_with_cp_and_ep_are_trained_as_printed():
    """A gate's loss is that of a pass, so one process has as many passes of as many sequences."""
    batch = 8
    for model, mesh, ranks in (("gpt", "cp=2", 2), ("gpt", "pp=2,cp=2", 4), ("moe", "ep=2", 2), ("moe", "pp=2,ep=2", 4),
                               ("moe", "ep=2,cp=2", 4)):
        own, train = ((), ()) if model == "gpt" else (EXPERTS, MOE)
        printed, path, made = auto(4, "--cluster", f"{ranks}:1gbit", "--batch", batch, "--mesh", mesh, *own, model=model)
        assert made["mesh"] == mesh and made["model"] == model and made["shape"].get("experts") == (4 if own else None), made
        assert made["predicted"]["sent_bytes"]["cp" if "cp" in mesh else "ep"] > 0, made
        assert re.search(rf"^  {mesh} +[\d.e-]+ ", printed, re.M) and ("ep MB" in printed) == (model == "moe"), printed
        trained, got = auto_losses(ranks, 4, "--plan", path, *train)
        _, want = auto_losses(1, 4, "--batch", made["batch"], "--accum", batch // made["batch"], *train)
        assert len(got) == STEPS and all(abs(a - b) < 1e-4 * a for a, b in zip(want, got)), (made, want, got)
        assert f" x {made['batch']} windows x {made['micro_batches']}" in trained, (made, trained)


KEYS = ("--kv-heads", 1, "--hidden", 48)
MIXTRAL = (*KEYS, *EXPERTS)


def train_printed(printed, *flags):
    """The losses of the command that plan auto has printed."""
    path = FOLDER / "printed-losses"
    words = re.search(r"^lockstep (train gpt .*) --data \.\.\.$", printed, re.M)[1].split()
    trained = command(LOCKSTEP, *words, "--data", text(), "--steps", STEPS, "--log-losses", path, *flags)
    return trained, [float(line.split()[-1]) for line in path.read_text().splitlines()]


@test
def plans_of_a_llama_and_a_mixtral_are_trained_as_printed():
    """Two ranks of tp share the only head of keys."""
    batch, fast = 8, ("--device", "10gflop,10gbyte")
    for model, mesh, ranks, *more in (("llama", None, 4), ("llama", "pp=2", 2, "--tied"), ("llama", "dp=2", 2), ("llama", "cp=2", 2),
                                      ("llama", "tp=2", 2), ("llama", "pp=2,tp=2", 4, "--tied"), ("mixtral", None, 4),
                                      ("mixtral", "ep=2", 2), ("mixtral", "tp=2", 2), ("mixtral", "pp=2,ep=2", 4)):
        own = (*(KEYS if model == "llama" else MIXTRAL), *more)
        one = () if mesh is None else ("--mesh", mesh)
        printed, path, made = auto(3, "--cluster", f"{ranks}:10gbyte", "--batch", batch, *fast, *one, *own, model=model)
        assert mesh in (None, made["mesh"]) and made["workers"] == ranks and made["model"] == model, made
        assert made["shape"] == {"layers": 3, "dim": 32, "heads": 2, "vocab": 256, "context": 16, "kv_heads": 1, "head_dim": 16,
                                 "hidden": 48, "tied": int("--tied" in more),
                                 **({"experts": 4, "top_k": 2} if model == "mixtral" else {})}, made
        assert re.search(rf"^  {made['mesh']} +[\d.e-]+ ", printed, re.M), printed
        if mesh == "tp=2":
            assert "self_attn.k_proj=column(heads=1)" in made["tensor_plan"] and ("mlp." in made["tensor_plan"]) == (model == "llama"), made
        trained, got = train_printed(printed)
        _, want = auto_losses(1, 3, "--batch", made["batch"], "--accum", batch // made["batch"], "--model", model, *own)
        assert len(got) == STEPS and all(abs(a - b) < 1e-4 * a for a, b in zip(want, got)), (made, want, got)
        assert f" x {made['batch']} windows x {made['micro_batches']}" in trained, (made, trained)


@test
def a_plan_for_another_llama_is_refused_by_name():
    _, path, made = auto(3, "--cluster", "2:1gbit", *KEYS, model="llama")
    train = ("train", "gpt", "-n", 2, "--data", text(), "--plan", path, *shape(3), "--model", "llama", "--hidden")
    other = "ls_plan_check_model: the plan is for model %s with %s %lld, and this one has %lld; plan again for this model"
    for name, words in (("kv_heads", (48, "--kv-heads", 2)), ("hidden", (64, "--kv-heads", 1)), ("tied", (48, "--kv-heads", 1, "--tied"))):
        printed = refused(*train, *words)
        says(printed, other)
        assert f"the plan is for model llama with {name} " in printed, printed
    says(refused("train", "gpt", "-n", 2, "--data", text(), "--plan", path, *shape(3), "--model", "mixtral", *MIXTRAL),
         "ls_plan_check_model: the plan is for the model \"%s\", and this is \"%s\"; plan again for this model")


TINY = dict(model_type="llama", num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=48,
            max_position_embeddings=32, vocab_size=256)


def folder_of(**changed):
    """A folder with a config.json; what is None is left out of it."""
    folder = FOLDER / "folder"
    folder.mkdir(exist_ok=True)
    config = {name: value for name, value in {**TINY, **changed}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@test
def the_model_of_a_folder_is_planned_and_trained():
    path = FOLDER / "folder.json"
    for model, own in (("llama", (*KEYS, "--tied")), ("mixtral", MIXTRAL)):
        folder = FOLDER / f"exported-{model}"
        command(LOCKSTEP, "train", "gpt", "--data", text(), *shape(2), "--model", model, *own, "--steps", 1, "--export", f"{folder}/")
        (folder / "run.json").unlink(missing_ok=True)  # as if transformers had written it
        flags = ("--cluster", "4:1gbit", "--context", 8, "--batch", 8, "--out", path)
        printed = command(LOCKSTEP, "plan", "auto", "--init", folder, *flags)
        made = json.loads(path.read_text())
        assert made["model"] == model and made["shape"]["context"] == 8 and made["shape"]["hidden"] == 48, made
        assert printed.splitlines()[0].startswith(f"{model}: 2 layers, dim 32, 2 heads, 1 of keys, MLPs of 48"), printed
        assert printed == command(LOCKSTEP, "plan", "auto", model, "--init", folder, *flags)
        _, got = train_printed(printed)
        assert len(got) == STEPS and got[0] < 7, got
    printed = command(LOCKSTEP, "plan", "auto", "--init", folder_of(model_type="gpt2", n_layer=2, n_head=2, n_embd=32, n_positions=64),
                      "--cluster", "2:1gbit", "--out", path)
    assert json.loads(path.read_text())["model"] == "gpt2" and "gpt2: 2 layers, dim 32, 2 heads, vocabulary 256, context 64;" in printed


@test
def odd_configs_are_refused():
    count = sentence('"%s": "%s" is missing or not a count; is it a GPT-2\'s, a Llama\'s or a Mixtral\'s?')
    numbers = [name for name in TINY if name != "model_type"]
    bad = [(count, {name: value}) for name in numbers for value in (0, -1, "4", 1.5, 10**12, [], True)]
    bad += [(count, {name: None}) for name in numbers if name != "num_key_value_heads"]
    bad += [(sentence("--heads %lld is not a multiple of --kv-heads %lld"), {"num_key_value_heads": 3}),
            (sentence("--dim %lld is not a multiple of --heads %lld"), {"num_attention_heads": 64}),
            (sentence("--dim %lld with --heads %lld: a head has an odd number of elements, which rotary positions turn in pairs; give it an "
                      "even one"), {"head_dim": 7}),
            (sentence('"%s": its config.json says %lld where --%s is at most %.0f; is it damaged?'), {"num_hidden_layers": 10**6}),
            (sentence('"%s": "model_type" is "%s"; give a gpt2, a llama or a mixtral'), {"model_type": "bert"})]
    for said, changed in bad:
        folder = folder_of(**changed)
        for words in (("plan", "auto", "--cluster", "2:1gbit"), ("sim",)):
            done = subprocess.run([LOCKSTEP, *words, "--init", folder], text=True, capture_output=True, timeout=60)
            assert done.returncode in (1, 2), (changed, done)
            says(done.stderr, said)
    for text_of in ("", "{", "[]", '{"model_type": "llama", "hidden_size": 1' + "0" * 30 + "}", "null", '"llama"', "[" * 5000):
        folder = folder_of()
        (folder / "config.json").write_text(text_of)
        assert "config.json" in refused("plan", "auto", "--init", folder, "--cluster", "2:1gbit"), text_of
    folder = folder_of()
    for words, said in (
            (("--init", FOLDER / "none"), sentence('--init "%s": there is no config.json; give the folder of a model, as transformers writes it')),
            (("--init", folder, "--context", 64), sentence("--context is %lld, the model of --init knows %lld positions")),
            (("--init", folder, "--layers", 3), sentence('--%s contradicts "%s", whose model has %lld; leave it out')),
            (("--init", folder, "--top-k", 1), sentence("--%s is for --model %s, and this is %s; leave it out, or give --model")),
            (("llama", "--top-k", 1), "--top-k is for --model moe or mixtral, and this is llama"),
            (("--init", FOLDER / "exported-mixtral", "--top-k", 1), sentence('--%s contradicts "%s", whose model has %lld; leave it out')),
            (("gpt", "--init", folder), sentence("the model of --init is %s, and this is %s; leave one out")),
            ((), sentence("give one model: gpt, moe, llama, mixtral, gpt2 to gpt2-xl, or --init with the folder of one")),
            (("gpt", "--kv-heads", 1), sentence("--%s is for llama and mixtral, and this is %s; leave it out")),
            (("llama", "--experts", 4), sentence("--%s is for --model %s, and this is %s; leave it out, or give --model"))):
        says(refused("plan", "auto", *words, "--cluster", "2:1gbit"), said)


@test
def a_plan_that_training_refuses_says_why():
    _, path, made = auto(4, "--cluster", "4:1gbit", "--batch", 8, "--mesh", "dp=2,ep=2", *EXPERTS, model="moe")

    def said(ranks, *flags, **changed):
        path.write_text(json.dumps(dict(made, **changed)))
        return refused("train", "gpt", "-n", ranks, "--data", text(), "--plan", path, *shape(4), *MOE, *flags)
    says(said(4, zero=3), "%s with an axis %s of --mesh: all ranks gather in one order, and those along %s have other parameters; give "
         "--zero 1 or 2 without --shard-group")
    says(said(3, mesh="ep=3", workers=3), '--experts %lld cannot be divided over the %lld ranks along ep of --mesh "%s"; give a multiple')
    says(said(4, "--experts", 6), "ls_plan_check_model: the plan is for model %s with %s %lld, and this one has %lld; plan again for this model")
    says(said(4, mesh="sp=2,dp=2"), '--mesh is "%s"; training has the axes dp, replicas with other data, pp, the stages of a pipeline, tp, '
         'parts of each layer, cp, parts of each sequence, and ep, experts, and none that is called "%.*s"')


@test
def axes_that_a_model_lacks_are_refused():
    for words, said in ((("gpt", "--mesh", "ep=2"), "--mesh has an axis ep, and %s has no experts; give moe, or leave ep out"),
                        (("gpt2", "--mesh", "cp=2"), "--mesh has an axis cp, and %s has no ring attention; give gpt or moe, or leave cp out"),
                        (("gpt", "--top-k", 1), "--%s is for moe, and %s has no experts; leave it out"),
                        (("moe", "--top-k", 9), "--top-k %lld is more than --experts %lld; give at most all")):
        says(refused("plan", "auto", *words, "--cluster", "2:1gbit"), said)


@test
def tp_divides_what_it_can_and_trains_the_words_of_the_plan():
    """One head is whole on both ranks. With --sequence, embedding and head may be whole; that no plan here has."""
    one_head = ("--heads", 1)
    _, want = auto_losses(1, 2, "--batch", 4, *one_head)
    printed, path, made = auto(2, "--cluster", "2:10gbyte", "--device", "10gflop,10gbyte", "--batch", 4, "--mesh", "tp=2", *one_head)
    assert "up=column" in made["tensor_plan"] and "qkv" not in made["tensor_plan"], made
    assert made["tensor_plan"] in printed and "whole attention" in printed, printed
    words = "positions=sequence blocks.*.norm*=sequence blocks.*.qkv=column(3) blocks.*.proj=row blocks.*.up=column " \
            "blocks.*.down=row norm=sequence"
    _, got = auto_losses(2, 2, "--plan", path, *one_head)
    assert all(abs(a - b) < 1e-3 * a for a, b in zip(want, got, strict=True)), (made, want, got)
    path.write_text(json.dumps(dict(made, shape=dict(made["shape"], heads=2), tensor_plan=words, sequence=True)))
    _, want = auto_losses(1, 2, "--batch", 4)
    _, got = auto_losses(2, 2, "--plan", path)
    assert all(abs(a - b) < 1e-3 * a for a, b in zip(want, got, strict=True)), (want, got)
    says(refused("train", "gpt", "-n", 2, "--data", text(), "--plan", path, *shape(2), "--tensor-plan", words),
         "--plan and --%s set the same; leave one of them out")


@test
def a_limit_of_memory_changes_the_plan():
    def planned(*limit):
        return auto(8, "--cluster", "4:10gbit", "--batch", 64, *limit)[2]["predicted"]["memory_bytes"]
    free = planned()
    assert planned("--memory", int(free * 0.9)) <= free * 0.9
    printed = refused("plan", "auto", "gpt", *shape(8), "--cluster", "4:10gbit", "--memory", 1000)
    says(printed, "plan: no plan of %d ranks fits into %.0f bytes of each; give more memory, more ranks, or a smaller --batch")


@test
def a_plan_auto_for_another_model_is_refused_by_name():
    _, path, _ = auto(3, "--cluster", "2:1gbit")
    train = ("train", "gpt", "-n", 2, "--data", text(), "--plan", path)
    says(refused(*train, *shape(4)), "ls_plan_check_model: the plan is for model %s with %s %lld, and this one has %lld; plan again for this model")
    says(refused(*train, *shape(3), "--model", "moe"), "ls_plan_check_model: the plan is for the model \"%s\", and this is \"%s\"; plan again for this model")
    says(refused(*train, *shape(3), "--batch", 4), "--plan and --%s set the same; leave one of them out")
    says(refused("train", "gpt", "-n", 3, *train[4:], *shape(3)), "--plan \"%s\" is for %d ranks, and this job has %d; start it with -n %d")


@test
def plan_auto_draws_what_it_prints():
    path = FOLDER / "auto.svg"
    printed = command(LOCKSTEP, "plan", "auto", "gpt", *shape(3), "--cluster", "2:10gbit,2:1gbit", "--svg", path)
    drawn = path.read_text()
    rows = re.findall(r"^  (\S+) +[\d.e+-]+ +[\d.e+-]+ +[\d.e+-]+ ", printed, re.M)
    assert len(rows) > 3 and all(f">{row}</text>" in drawn for row in rows), (printed, drawn)


@test
def an_output_that_cannot_be_written_is_refused_before_anything_is_measured():
    path, _ = profile("gpt", gpt())
    nowhere = FOLDER / "none" / "x.json"
    printed = refused("plan", "pipeline", path, "--workers", 2, "--bandwidth", "1gbit", "--out", nowhere)
    says(printed, "lockstep: \"%s\" cannot be written: %s")
    assert len(printed.splitlines()) == 1, printed
    kind, *own = gpt()
    printed = refused("plan", "profile", kind, *own, "--out", nowhere)
    says(printed, "--profile: \"%s\" cannot be written: %s")
    assert not nowhere.parent.exists()


@test
def a_plan_for_another_model_or_job_is_refused():
    path, _ = profile("gpt", gpt())
    _, path, made = plan(path, 2, "--bandwidth", "1gbit")
    kind, *own = gpt(layers=4)
    printed = refused("train", kind, "-n", made["workers"], *own, "--plan", path)
    assert re.search(r"part 5 of the model is \"head\", and \"blocks.4\" in the plan \(of gpt\)", printed), printed
    says(refused("train", kind, "-n", 2, *own, "--profile", FOLDER / "x.json"),
         "--profile measures the whole model on one micro-batch in one process; leave -n, --mesh, --plan and --accum out")


@test
def what_a_command_reads_is_not_written_over():
    path = FOLDER / "to-keep.json"
    command(LOCKSTEP, "plan", "profile", *gpt(1), "--threads", 1, "--out", path)
    schedule, trace = FOLDER / "to-keep.txt", FOLDER / "to-keep.trace"
    schedule.write_text(command(LOCKSTEP, "plan", "schedule", "1f1b", "--table"))
    trace.write_text("{}")
    for file, flag, words in ((path, "out", ("plan", "pipeline", path, "--workers", 2, "--bandwidth", "1gbit")),
                              (schedule, "svg", ("plan", "schedule", schedule)), (trace, "json", ("trace", trace))):
        before = file.read_bytes()
        done = subprocess.run([str(word) for word in (LOCKSTEP, *words, f"--{flag}", file)], capture_output=True, text=True)
        says(done.stderr, '--%s would replace "%s", which this command reads; give another file')
        assert done.returncode == 2 and done.stdout == "" and file.read_bytes() == before, done


@test
def a_full_disk_under_standard_output_is_an_error():
    train = ("train", *gpt(1), "--eval-windows", 1, "--steps", 1)
    command(LOCKSTEP, *train, "--save", FOLDER / "full", cwd=FOLDER)
    for words in ((), ("--help",), ("help", "run"), ("version",), ("info",), ("completion", "bash"), ("trace", "--help"),
                  ("plan", "schedule", "1f1b"), ("plan", "schedule", "1f1b", "--table"), ("data", "tokens", "--help"),
                  ("train", "image", "--help=man"), ("generate", "--help"), ("generate", "--checkpoint", FOLDER / "full",
                  "--tokens", 2), train, ("plan", "profile", *gpt(1), "--threads", 1, "--out", FOLDER / "full.json"),
                  ("run", "-n", 1, LOCKSTEP, *train)):
        with open("/dev/full", "w") as full:
            done = subprocess.run([str(word) for word in (LOCKSTEP, *words)], stdout=full, stderr=subprocess.PIPE, text=True,
                                  timeout=100, cwd=FOLDER)
        if words:
            says(done.stderr, "error: standard output cannot be written: %s; some of it is missing there")
            assert done.returncode == 1 and "No space left on device" in done.stderr, (words, done)
        else:  # nothing is printed there
            assert done.returncode == 2 and "cannot be written" not in done.stderr, done


run()
