# SPDX-License-Identifier: Apache-2.0
"""`lockstep bench`, and the comparison with other libraries without running it: flags, rows, tables.

Nothing here looks at a time: benchmarks print, tests decide on what was computed and written.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from sentences import says, sentence
from tap import BUILD, SOURCE, Skip, command, none_of, run, test

PEERS = SOURCE / "bench/peers"
sys.path[:0] = [str(PEERS), str(PEERS.parent)]
sys.dont_write_bytecode = True
import compare
import compare_torch_backend
import compare_training
import contenders
import pages
import settings
import sweep
import table
import torch_venv
from session import Gone, Session

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-bench-")
# The pages with tables of a processor; README.md has those of one.
SHOWN = (("README.md", "amd"), ("docs/measurements.md", "amd"), ("docs/measurements.md", "intel"))
OPERATIONS = ["all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "sendrecv",
              "reduce", "gather", "scatter", "barrier", "all-gather-v", "reduce-scatter-v", "gather-v",
              "scatter-v", "all-to-all-v"]
KEYS = {"name", "bytes", "count", "ranks", "dtype", "op", "buffers", "algorithm", "transport", "time_ms",
        "spread", "algbw", "busbw", "wrong", "samples", "calls", "sent_bytes", "received_bytes", "samples_ms",
        "machine"}


def bench(*arguments):
    path = pathlib.Path(SCRATCH.name) / "rows.json"
    output = command(BUILD / "lockstep", "bench", *arguments, "--samples", "1", "--json", path)
    return output, json.loads(path.read_text())


@test
def every_operation_gives_a_row_a_size():
    problems = []
    for name in OPERATIONS:
        output, rows = bench(name, "-n", "3", "--sizes", "12,100K")
        sizes = [0] if name == "barrier" else [12, 100000]
        if [row["bytes"] // 12 for row in rows] != [size // 12 for size in sizes]:
            problems.append(f"{name}: {rows}")
        if any(set(row) - {"floor_ms", "floor_spread", "ratio"} != KEYS for row in rows):
            problems.append(f"{name}: keys {rows}")
        if any(row["samples_ms"] != [row["time_ms"]] for row in rows):  # of one sample
            problems.append(f"{name}: samples {rows}")
        if len([line for line in output.splitlines() if not line.startswith("#")]) != len(sizes):
            problems.append(f"{name}: {output}")
    none_of(problems, "rows that are not as they should be")


@test
def every_dtype_is_summed_and_checked():
    for dtype in ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"):
        _, rows = bench("all-reduce", "-n", "3", "--sizes", "48K", "--dtype", dtype)
        assert rows[0]["dtype"] == dtype and rows[0]["wrong"] == 0, rows


@test
def wrong_sums_are_noticed():
    """Of a backend whose every sum has a wrong bit."""
    environment = {**os.environ, "LOCKSTEP_BACKEND": str(BUILD / "tests/plugins/ls_backend_loop.so"), "LOOP_BROKEN": "sums"}
    for arguments, words in (
            (("all-reduce", "-n", "2", "--sizes", "4K", "--samples", "1", "--buffers", "private"),
             sentence("lockstep bench: wrong results: %lld elements of %s of %lld bytes")),
            (("pieces", "-n", "2", "--total", "100K", "--pieces", "1000"),
             sentence("wrong results: %lld elements of all-reduces of %lld elements"))):
        done = subprocess.run([BUILD / "lockstep", "bench", *arguments], env=environment, text=True, capture_output=True)
        says(done.stderr, words)
        assert done.returncode == 1, done


@test
def a_row_says_over_what_and_by_which_algorithm():
    _, rows = bench("all-reduce", "--sizes", "100K", "--transport", "tcp", "--algorithm", "ring",
                    "--buffers", "private", "--op", "max")
    row = rows[0]
    assert (row["transport"], row["algorithm"], row["buffers"], row["op"]) == \
        ("tcp", "ring", "private", "max"), row
    assert "floor_ms" not in row, row


def ddp_rows(*arguments):
    """The rows of small steps under DDP."""
    path = pathlib.Path(SCRATCH.name) / "ddp.json"
    command(BUILD / "lockstep", "bench", "ddp", "--model", "mlp-tiny", "--steps", "4", "--rounds", "2", "--json", path,
            *arguments)
    return json.loads(path.read_text())


@test
def every_mode_of_ddp_is_timed_and_its_parts_add_up():
    for ranks, transport in ((1, "shm"), (2, "shm"), (2, "tcp"), (5, "shm")):
        rows = ddp_rows("-n", str(ranks), "--transport", transport, "--buckets", "0.001,auto")
        assert [(row["mode"], row["buckets"]) for row in rows] == [
            ("naive", "-"), ("flat", "-"), ("bucketed", "0.001"), ("bucketed", "auto"), ("overlap", "0.001"),
            ("overlap", "auto"), ("local", "-")], rows
        for row in rows:
            parts = sum(row[part]["mean_ms"] for part in ("forward", "backward", "exposed", "optimizer"))
            assert parts <= row["step"]["mean_ms"] * 1.001 and parts >= row["step"]["mean_ms"] * 0.5, row
            assert all(slow >= mean * 0.99 for slow, mean in zip(row["slowest_ms"], row["round_ms"])), row
            assert row["ranks"] == ranks and len(row["round_ms"]) == 2 and row["transport"] == transport
            assert 0 <= row["hidden_share"] <= 1 and 0 <= row["comm_frac"] < 1
            if row["mode"] == "local":
                assert row["wire"]["mean_ms"] == row["exposed"]["mean_ms"] == 0 and row["bucket_bytes"] == []
            else:
                assert len(row["bucket_bytes"]) >= (6 if row["mode"] == "naive" else 1)
        assert len(rows[0]["bucket_bytes"]) == 6 and len(rows[1]["bucket_bytes"]) == 1


@test
def hooks_are_timed_beside_ddp_and_send_less():
    rows = ddp_rows("-n", "2", "--transport", "tcp", "--mode", "overlap,local", "--comm", "plain int8 top_k:density=0.01",
                    "--model", "mlp")  # messages of a few KiB are not counted
    assert [(row["mode"], row["comm"]) for row in rows] == [
        ("overlap", "plain"), ("local", "plain"), ("overlap/int8", "int8"),
        ("overlap/top_k:density=0.01", "top_k:density=0.01")], rows
    plain, local, int8, top_k = (row["sent_bytes"] for row in rows)
    assert local == 0 < top_k < int8 < plain, rows
    for flags, words in ((("--comm", "zip"), '--comm: communication hook "zip" is unknown; give plain'),
                         (("--comm", "int8", "--wire", "bfloat16"),
                          "--comm int8 and --wire bfloat16: a hook says itself what is sent; leave one of them out")):
        done = subprocess.run([BUILD / "lockstep", "bench", "ddp", "--model", "mlp-tiny", *flags], text=True, capture_output=True)
        assert done.returncode == 2 and words in done.stderr, done
    says(done.stderr, "--comm %s and --wire bfloat16: a hook says itself what is sent; leave one of them out")


@test
def the_ranks_of_a_job_take_part_in_a_bench_of_ddp():
    output = command(BUILD / "lockstep", "run", "-n", "3", BUILD / "lockstep", "bench", "ddp", "--model", "mlp-tiny",
                     "--mode", "flat", "--steps", "2")
    assert ", 3 ranks; means" in output and output.count("  flat ") == 1, output


def pipeline_rows(*arguments):
    """{schedule: row} of small steps of stages that sleep."""
    path = pathlib.Path(SCRATCH.name) / "pipeline.json"
    output = command(*arguments, "--micro-batches", "4", "--forward", "4", "--input", "3", "--weight", "2", "--rounds", "3",
                     "--json", path)
    rows = json.loads(path.read_text())
    assert all(f"  {row['schedule']} " in output for row in rows), output
    return {row["schedule"]: row for row in rows}


@test
def sleeping_stages_idle_at_least_as_long_as_the_formulas_say():
    """At most, too, on a quiet machine (docs/guide/pipeline.md)."""
    bench = (BUILD / "lockstep", "bench", "pipeline")
    for ranks, arguments in ((2, (*bench, "-n", "2")), (4, (*bench, "-n", "4", "--transport", "tcp")),
                             (2, (BUILD / "lockstep", "run", "-n", "2", *bench, "-n", "7"))):
        rows = pipeline_rows(*arguments, "--schedule", "naive,gpipe,1f1b,interleaved,zb-h1,pipedream,pipedream-2bw")
        idle = {"naive": 4 * 9, "interleaved": 9 / 2, "zb-h1": 4 + 3 - 2}
        for name, row in rows.items():
            assert row["ranks"] == ranks and row["micro_batches"] == 4 and len(row["round_ms"]) == 3, row
            assert row["chunks"] == (2 if name == "interleaved" else 1), row
            assert abs(row["formula_ms"] - (ranks - 1) * idle.get(name, 9)) < 1e-9, row
            assert row["work_ms"] >= 4 * 9 and row["step_ms"] >= row["work_ms"], row
            assert 0.8 < row["ratio"] and abs(row["ratio"] - row["bubble_ms"] / row["formula_ms"]) < 1e-6, row
    row, = pipeline_rows(*bench, "-n", "1", "--schedule", "gpipe").values()
    assert row["formula_ms"] == 0 and row["ratio"] is None, row


@test
def the_ranks_of_a_job_take_part_in_a_bench_of_an_operation():
    path = pathlib.Path(SCRATCH.name) / "joined.json"
    output = command(BUILD / "lockstep", "run", "-n", "3", BUILD / "lockstep", "bench", "all-gather-v", "-n", "2", "--sizes",
                     "12K", "--samples", "1", "--json", path)
    row, = json.loads(path.read_text())
    assert row["ranks"] == 3 and row["wrong"] == 0 and output.count("# all-gather-v, 3 ranks") == 1, output
    output = command(BUILD / "lockstep", "run", "-n", "2", BUILD / "lockstep", "bench", "all-reduce", "--sizes", "64K,1M",
                     "--samples", "3", "--buffers", "private", "--json", path)
    rows = json.loads(path.read_text())
    assert [(row["ranks"], row["bytes"], row["wrong"]) for row in rows] == [(2, 64000, 0), (2, 10**6, 0)], rows
    assert all("floor_ms" not in row and 0 < row["time_ms"] < 10000 for row in rows) and "floor" not in output, output
    large = {"RANK": "0", "WORLD_SIZE": "65", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "65"}
    done = subprocess.run([BUILD / "lockstep", "bench", "all-reduce"], text=True, capture_output=True, env=os.environ | large)
    says(done.stderr, "the launcher's job has %d ranks; start %d or fewer")
    assert done.returncode == 2 and "has 65 ranks; start 64 or fewer" in done.stderr, done.stderr


@test
def sizes_are_read_as_the_command_reads_them():
    assert [compare.parse_size(text) for text in ("4", "64Ki", "1M", "2G")] == \
        [4, 65536, 10**6, 2 * 10**9]
    for wrong in ("", "0", "5", "ten", "1Q", "-4"):
        try:
            compare.parse_size(wrong)
        except argparse.ArgumentTypeError:
            continue
        raise AssertionError(f"'{wrong}' was taken as a size")


@test
def given_sizes_or_ranks_shorten_the_comparison():
    whole = compare.parse(["--python", "python3"])
    assert whole.parts == compare.PARTS and whole.ranks == [2, 4, 6]
    short = compare.parse(["--ranks", "2", "--sizes", "1M", "--python", "python3"])
    assert short.parts == ["all_reduce"] and compare.cells(short) == [("all_reduce", 10**6)]
    assert short.json == "build/compare-collectives.json"


def load(path):
    """A second module that is called table."""
    spec = importlib.util.spec_from_file_location("training_table", PEERS.parent / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FieldOfNumbers:
    """What compare.rows_of needs of a field."""
    labels = {"openmpi4": "Open MPI 4", "mpich4": "MPICH 4", "oneccl": "oneCCL 1"}


def made_up_rows():
    found = {("lockstep", True): [[1.0], [2.0], [1.0]], ("lockstep", False): [[2.0], [2.0], [2.0]],
             ("openmpi4", False): [[4.0], [4.0], [5.0]], ("mpich4", False): [[3.0], [9.0], [9.0]],
             ("oneccl", False): [[3.5]]}  # left after the first round
    return compare.rows_of(FieldOfNumbers, 2, "all_reduce", 10**6, found)


@test
def a_row_has_the_best_peer_and_the_ratio_of_each_round():
    registered, private = made_up_rows()
    assert registered["peer"] == "Open MPI 4" and registered["peer_ms"] == 4.0, registered
    assert registered["ours_ms"] == 1.0 and private["ours_ms"] == 2.0
    assert (registered["ratio"], registered["ratio_low"], registered["ratio_high"]) == (4.0, 2.0, 5.0)
    assert registered["spread"] == 3.0 / 4.0 and private["ratio"] == 2.0
    assert {"name", "peer", "ours_ms", "peer_ms", "ratio", "spread"} <= set(private)
    assert private["rounds"] == 3 and private["peers_ms"]["oneCCL 1"] == 3.5


class FieldOfAnswers:
    """What compare.measure needs of a field: every turn answers with the contender's milliseconds."""

    def __init__(self, ms, failing=()):
        self.all = [contenders.ALL[key]("build", "python", settings.Table(None)) for key in ms]
        self.ms, self.failing, self.options = ms, failing, argparse.Namespace(rounds=5)

    def ask(self, contender, registered, ranks, op, size):
        return None if contender.key in self.failing else [self.ms[contender.key]]

    def late(self):
        return False


@test
def a_peer_of_twice_the_best_ones_time_leaves_after_the_first_round():
    field = FieldOfAnswers({"lockstep": 9.0, "openmpi5": 1.0, "mpich5": 1.9, "gloo": 2.1, "oneccl": 1.0}, {"oneccl"})
    for size, rounds in ((1000, 5), (10**8, 3), (10**9, 3)):
        found = compare.measure(field, 2, "all_reduce", size)
        assert {key: len(turns) for key, turns in found.items()} == {
            ("lockstep", True): rounds, ("lockstep", False): rounds, ("openmpi5", False): rounds,
            ("mpich5", False): rounds, ("gloo", False): 1}, found


@test
def settings_are_those_of_the_nearest_row_of_the_operation():
    rows = [{"peer": "mpich5", "operation": operation, "ranks": ranks, "bytes": size, "settings": {"V": f"{ranks} {size}"}}
            for operation, ranks, size in (("all_reduce", 2, 64), ("all_reduce", 2, 10**6), ("all_reduce", 6, 64),
                                           ("broadcast", 2, 10**6))]
    known = settings.Table(None, {"machine": {}, "rows": rows})
    for ranks, size, want in ((2, 4, "2 64"), (2, 65536, "2 1000000"), (2, 10**9, "2 1000000"), (8, 10**9, "6 64")):
        assert known.best("mpich5", "all_reduce", ranks, size) == {"V": want}, (ranks, size)
    assert known.best("mpich5", "broadcast", 6, 4) == {"V": "2 1000000"}
    assert known.best("mpich5", "all_gather", 2, 4) == known.best("mpich4", "all_reduce", 2, 4) == {}


@test
def the_tables_of_settings_name_their_machine_and_are_never_slower_than_defaults():
    for path in sorted(PEERS.glob("settings-*.json")):
        known = settings.Table(path, json.loads(path.read_text()))
        assert known.machine["processor"] and known.machine["cores"], path
        assert pages.kind_of(known.machine["processor"]) in path.name, path
        slower = [row for row in known.rows.values() if row.get("us", 0) > row.get("default_us", 0)]
        none_of([str(row) for row in slower], "settings that are slower than the defaults")


@test
def a_sweep_takes_the_fastest_settings_of_each_size():
    def measure(sizes, variables):
        ms = {(): 10.0, ("a",): 6.0, ("b",): 5.9, ("a", "c"): 9.0}
        found = {size: ms.get(tuple(variables), 20.0) for size in sizes}
        return {size: 4.0 if size > 5 and "c" in variables else time for size, time in found.items()}
    best = {1: (10.0, {}), 9: (10.0, {})}
    sweep.improve(best, [({"a": "1"}, settings.ANY), ({"c": "1"}, settings.ANY)], measure)
    assert best == {1: (6.0, {"a": "1"}), 9: (4.0, {"a": "1", "c": "1"})}, best
    best = {1: (6.0, {}), 9: (6.0, {})}
    sweep.improve(best, [({"b": "1"}, (0, 5))], measure)  # 2 % faster is noise; the size 9 is not asked
    assert best == {1: (6.0, {}), 9: (6.0, {})}, best


@test
def every_peer_with_settings_has_candidates_for_every_operation():
    for key in contenders.PEERS:
        if key != "gloo":
            for operation in compare.OPERATIONS:
                tried = [variables for variables, _ in settings.ALGORITHMS[key](operation)]
                assert len(tried) > 1 and len({str(v) for v in tried}) == len(tried), (key, operation)
            assert all(variables for variables, _ in settings.OTHERS[key]()), key


@test
def the_table_stands_between_its_two_lines():
    about = {"processor": "P of AMD", "cores": 2, "others_cores": 1.0, "seconds": 1, "date": "D", "command": "C",
             "settings": "S", "peers": ["Open MPI 4", "MPICH 4"], "commit": "abc"}
    rows = [{**row, "conditions": about} for row in made_up_rows()]
    launch = {"operation": "launch", "program": "Python programs", "ranks": 8, "rounds": 5, "ours_ms": 2.0, "peer": "T",
              "peer_ms": 3.0}
    part = table.page(rows + [launch])
    assert "| 2 × 1 MB | 1 ms | 2 ms | 4 ms Open MPI 4 | 4.00 [2.00, 5.00] | 2.00 [2.00, 2.50] | 3 |" in part, part
    assert "**not quiet**" in part and "`C`" in part and "Open MPI 4, MPICH 4, with these settings: S" in part
    assert "Python programs (medians of 5 starts): Lockstep 2 ms, T 3 ms." in part, part
    assert "docs/images/all_reduce-amd.svg" in table.short_page(rows)
    assert "| all_reduce, 1 MB | 4.00, 2.00 |" in table.matrix(part), table.matrix(part)
    for name, kind in SHOWN:
        kept = (SOURCE / name).read_text()
        written = pages.put_into(kept, table.NAME, kind, part)
        assert pages.part_of(written, table.NAME, kind) == f"\n{part}", (name, kind)
        other = "amd" if kind == "intel" else "intel"
        assert pages.part_of(written, table.NAME, other) == pages.part_of(kept, table.NAME, other)
    readme = (SOURCE / "README.md").read_text()
    assert pages.put_where_marked(readme, table.NAME, "intel", part) == readme
    assert pages.put_where_marked(readme, table.NAME, "amd", part) == pages.put_into(readme, table.NAME, "amd", part)


@test
def processors_have_one_name_in_pages_and_files():
    for name, kind in (("AMD EPYC", "amd"), ("Intel(R) Xeon(R) Processor", "intel"), ("Neoverse-N1", "other")):
        assert pages.kind_of(name) == kind


@test
def our_contender_answers_commands_and_ends():
    program = pathlib.Path(SCRATCH.name) / "contender"
    library = BUILD / "src"
    command("gcc", "-std=c17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", PEERS / "ours.c",
            PEERS / "contender.c", "-o", program, "-I", SOURCE / "include", f"-L{library}",
            "-llockstep", f"-Wl,-rpath,{library}", "-lm")
    launcher = [str(BUILD / "lockstep"), "run", "-n", "3", str(program), "FOLDER"]
    session = Session(launcher, 3, {}, SCRATCH.name)
    try:
        for operation in ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "all_to_all"):
            for size in (12, 100000):
                for buffers in ("registered", "private"):
                    samples, calls = session.ask(f"{operation} {size} {buffers} 5 4 0")
                    assert len(samples) == 3 and calls >= 1, samples
        try:
            session.ask("dance 4 private 5 3 0")
            raise AssertionError("an unknown command was answered")
        except Gone as gone:
            assert "status" in str(gone), gone
    finally:
        session.end()


def compile_with(compiler):
    if shutil.which(compiler) is None:
        raise Skip(f"{compiler} is not installed (apt-get install libopenmpi-dev libmpich-dev)")
    command(compiler, "-std=c17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror",
            PEERS / "mpi.c", PEERS / "contender.c", "-o", pathlib.Path(SCRATCH.name) / "mpi", "-lm")


@test
def the_contender_compiles_with_open_mpi():
    compile_with("mpicc.openmpi")


@test
def the_contender_compiles_with_mpich():
    compile_with("mpicc.mpich")


@test
def the_scripts_are_sound():
    command("sh", "-n", PEERS / "prepare")
    for script in sorted(PEERS.parent.glob("**/*.py")):
        compile(script.read_text(), script, "exec")


TRAINING = BUILD / "bench/contender_training"


@test
def the_training_contender_learns_what_it_is_asked_for():
    job = subprocess.run([TRAINING, "gpt-tiny", "2", "float32", "own"], input="3\n40\n", text=True,
                         capture_output=True, timeout=60)
    ready, first, last = job.stdout.splitlines()
    first, last = json.loads(first), json.loads(last)
    block = 2 * 64 + 32 * 96 + 96 + 32 * 32 + 32 + 32 * 128 + 128 + 128 * 32 + 32
    assert ready == f"ready {64 * 32 + 16 * 32 + 2 * block + 64 + 32 * 64} parameters", ready
    assert job.returncode == 0, job.stderr
    assert [len(first["ms"]), len(last["losses"])] == [3, 40]
    assert last["losses"][-1] < first["losses"][0] < 4.3, (first, last)  # log 64 = 4.16
    assert last["peak_mb"] > 0, last


@test
def weights_and_batches_by_the_formula_have_the_loss_that_pytorch_found():
    """What training/contender_torch.py printed for the first three steps, with PyTorch 2.13."""
    for name, batch, losses in (("mlp-tiny", 4, (1.4269524812698364, 1.4264235496520996, 1.4258952140808105)),
                                ("gpt-tiny", 4, (4.59282922744751, 4.565664291381836, 4.538661003112793))):
        job = subprocess.run([TRAINING, name, str(batch), "float32", "formula"], input="3\n", text=True,
                             capture_output=True, timeout=60)
        found = json.loads(job.stdout.splitlines()[1])["losses"]
        assert all(abs(a - b) < 1e-4 * b for a, b in zip(found, losses)), (name, found, losses)


@test
def a_training_contender_of_no_known_model_says_so():
    job = subprocess.run([TRAINING, "perceptron", "2", "float32", "own"], text=True, capture_output=True)
    assert job.returncode == 2 and "no network 'perceptron'" in job.stderr, job


def step(*arguments):
    path = pathlib.Path(SCRATCH.name) / "step.json"
    output = command(BUILD / "lockstep", "bench", "step", *arguments, "--steps", "3", "--json", path)
    return output, json.loads(path.read_text())


def work_of(found):
    return {(row["operation"], row["pass"]): (row["calls"], row["flops"]) for row in found["rows"]}


@test
def a_profile_counts_the_work_of_a_small_perceptron():
    output, found = step("--model", "mlp-tiny", "--profile", "--threads", "1")
    wide, last = 12 * 8 + 8 * 8, 8 * 4  # the first input wants no gradient
    assert work_of(found) == {
        ("linear_relu", "forward"): (2, 2 * 4 * wide), ("linear_relu", "backward"): (2, 2 * 4 * (2 * wide - 12 * 8)),
        ("linear", "forward"): (1, 2 * 4 * last), ("linear", "backward"): (1, 2 * 4 * 2 * last),
        ("cross_entropy", "forward"): (1, 0), ("cross_entropy", "backward"): (1, 0), ("AdamW", "update"): (1, 0), ("zero_grad", "update"): (1, 0),
        (sentence("between operations"), ""): (1 / 3, 0)}, found
    moved = {(row["operation"], row["pass"]): row["bytes"] for row in found["rows"]}
    assert moved["linear_relu", "forward"] == 4 * (4 * (12 + 8 + 8 + 8) + wide + 16), moved
    assert moved["linear", "forward"] == 4 * (4 * (8 + 4) + last + 4), moved
    assert output.count("\n") == 3 + len(found["rows"]) + 2 and "GB/s" in output, output


@test
def a_profile_counts_the_products_of_a_small_gpt():
    _, found = step("--model", "gpt-tiny", "--profile")
    work, rows, blocks = work_of(found), 2 * 16, 2
    weights = blocks * (32 * 96 + 32 * 32 + 2 * 32 * 128) + 32 * 64
    attention = blocks * 4 * rows * 32 * 16
    up = blocks * 32 * 128
    assert work["linear", "forward"] == (3 * blocks + 1, 2 * rows * (weights - up)), work
    assert work["linear", "backward"] == (3 * blocks + 1, 4 * rows * (weights - up)), work
    assert work["linear_gelu", "forward"] == (blocks, 2 * rows * up), work
    assert work["linear_gelu", "backward"] == (blocks, 4 * rows * up), work
    assert work["attention", "forward"] == (blocks, attention), work
    assert work["attention", "backward"] == (blocks, 2.5 * attention), work
    for operation, calls in (("layer_norm", 2 * blocks + 1), ("embedding", 1)):
        assert work[operation, "forward"][0] == work[operation, "backward"][0] == calls, (operation, work)


@test
def the_operations_of_a_profile_add_up_to_the_step():
    for model in ("mlp-tiny", "gpt-tiny"):
        _, found = step("--model", model, "--profile")
        assert all(row["ms"] >= 0 for row in found["rows"]), found
        assert abs(sum(row["ms"] for row in found["rows"]) - found["mean_ms"]) < 1e-5, found


@test
def a_step_without_a_profile_has_no_rows():
    output, found = step("--model", "mlp-tiny", "--batch", "7")
    assert found["rows"] == [] and found["batch"] == 7 and found["allocations"] == 0, found
    assert output.count("\n") == 2 and " ms a step" in output, output


class TrainedContender:
    def __init__(self, name, ms, losses=(2.0, 1.0, 0.5)):
        self.name, self.turns, self.cpu, self.peak_mb, self.losses = name, ms, ms, 100.0, losses
        self.parameters = 7


@test
def training_is_compared_in_pairs_of_turns():
    row = compare_training.ROWS["gpt"]
    found = compare_training.row_of(row, 2, TrainedContender("Lockstep", [1.0, 2.0, 4.0]),
                                    TrainedContender("PyTorch 2", [3.0, 4.0, 4.0]))
    assert (found["ratio"], found["ours_ms"], found["peer_ms"]) == (2.0, 2.0, 4.0), found
    assert {"name", "peer", "ours_ms", "peer_ms", "ratio", "spread"} <= set(found)
    assert (found["spread"], found["spread_is"], found["turns"]) == ([1.0, 3.0], "lowest to highest", 3), found
    assert compare_training.line_of(found).count("|") == compare_training.HEAD.splitlines()[1].count("|")
    many = compare_training.row_of(row, 2, TrainedContender("Lockstep", [1.0] * 9),
                                   TrainedContender("PyTorch 2", [float(i) for i in range(1, 10)]))
    assert (many["spread"], many["spread_is"]) == ([2.5, 7.5], "quartiles"), many
    assert "2.50 to 7.50 |" in compare_training.line_of(many) and "3.00 * |" in compare_training.line_of(found)


@test
def a_peer_runs_with_its_defaults_and_tuned_eagerly_and_compiled():
    gpt, resnet = (compare_training.ROWS[name] for name in ("gpt", "resnet50"))
    ways = ["", ", tuned", ", compiled", ", compiled, tuned"]
    assert list(compare_training.variants_of(gpt, "2.13")) == ["PyTorch 2.13" + way for way in ways]
    images = compare_training.variants_of(resnet, "2.13")
    assert list(images) == [f"PyTorch 2.13{layout}{way}" for layout in ("", ", NHWC") for way in ways]
    assert images["PyTorch 2.13, NHWC"] == (("channels_last",), {})
    flags, variables = images["PyTorch 2.13, NHWC, compiled, tuned"]
    assert flags == ("channels_last", "compiled", "fused") and "THP_MEM_ALLOC_ENABLE" in variables
    eager = ["PyTorch 2.13", "PyTorch 2.13, tuned"]
    assert list(compare_training.variants_of(gpt, "2.13", eager=True)) == eager
    assert list(compare_training.variants_of(gpt, "1.13.1")) == ["PyTorch 1.13.1", "PyTorch 1.13.1, tuned"]  # has no compiler


@test
def only_variants_that_may_be_the_fastest_take_turns():
    class Started:
        def __init__(self, ms):
            self.ms, self.ended = ms, False

        def end(self):
            self.ended = True
    group = [Started(ms) for ms in (1.0, 1.2, 1.4)]
    assert compare_training.without_slow(group) == group[:2] and [c.ended for c in group] == [False, False, True]


@test
def short_rows_have_turns_enough_for_quartiles():
    options = argparse.Namespace(turns=11, seconds=25)
    for round_s, turns in ((0.8, 11), (2.6, 10), (3.0, 9), (5.0, 9), (6.0, 4), (30.0, 3)):
        assert compare_training.turns_of(options, round_s) == turns, round_s


@test
def rows_of_training_become_two_tables():
    training = load("training/table.py")
    rows = [{"name": f"{net}, {threads} threads", "net": net, "threads": threads, "peer": peer, "ours_ms": 10.0,
             "peer_ms": 12.5, "ratio": 1.25, "spread": [1.2, 1.3], "ours_cpu_ms": 10.0, "peer_cpu_ms": 12.0,
             "ours_peak_mb": 100.0, "peer_peak_mb": 300.0, "turns": 3 if net == "GPT" else 9,
             "spread_is": "lowest to highest" if net == "GPT" else "quartiles",
             "conditions": {"date": "D", "processor": "P", "cores": 2, "others_cores": 0.9, "minutes": 3,
                            "commit": "abc"}}
            for net in ("MLP", "GPT") for threads in (1, 2) for peer in ("PyTorch 2", "PyTorch 1")]
    rows.append({"name": "exec to the first step: GPT", "peer": "PyTorch 2", "ours_ms": 42.0, "peer_ms": 4200.0,
                 "starts": [5, 3], "conditions": {}})
    short, long = training.short_page(rows), training.long_page(rows)
    assert "| GPT | 10.00 | 12.50 | 1.25 | 10.00 | 12.50 | 1.25 | 100 / 300 |" in short, short
    assert short.count("\n| ") == 4 and "PyTorch 1" not in short and "**not quiet**" in short, short
    assert "3 to 9 pairs of turns" in short, short
    assert long.count("| 1.20 to 1.30 | 9 |") == 4 and long.count("| 1.20 to 1.30 * | 3 |") == 4, long
    assert "| GPT | 42 | 4200 | PyTorch 2 | 5, 3 |" in long, long
    assert "compiled" not in short + long
    for page in (training.short_page, training.long_page):
        assert "eagerly and compiled (torch.compile)" in page([{**row, "eager": False} for row in rows])
    for name, kind in SHOWN:
        assert "new" in pages.put_into((SOURCE / name).read_text(), training.NAME, kind, "new")


@test
def every_row_that_is_written_has_a_ratio():
    former = compare_training.start_of
    compare_training.start_of = lambda options, row, times, python=None: [20.0 if python else 10.0] * times
    try:
        for peers, names in (({}, []), ({"python": "2"}, [compare_training.ROWS["gpt"][3]])):
            found = list(compare_training.starts(None, ["mlp", "gpt"], peers))
            assert [compare_training.start_line_of(row).count("|") for row in found] == [6, 6], found
            written = compare_training.with_peer(found)
            assert [row["name"].split(": ")[1] for row in written] == names, written
            assert all(row["ratio"] == 2.0 for row in written), written
    finally:
        compare_training.start_of = former


@test
def the_torch_that_is_installed_is_the_build_for_the_cpu():
    assert f"torch=={torch_venv.VERSION}" in torch_venv.pip_arguments() and "+cpu" in torch_venv.VERSION
    with tempfile.TemporaryDirectory() as folder:
        python = pathlib.Path(folder) / "python"
        for said, cuda in (("None", None), ("13.2", "13.2")):
            python.write_text(f"#!/bin/sh\necho {said}\n")
            python.chmod(0o755)
            assert torch_venv.cuda_of(str(python)) == cuda


@test
def contenders_with_other_losses_or_parameters_are_not_compared():
    row, ours = compare_training.ROWS["gpt"], TrainedContender("Lockstep", [1.0])
    assert compare_training.differing(row, ours, TrainedContender("peer", [1.0], (2.0001, 1.0, 0.5))) is None
    for losses in ((2.001, 1.0, 0.5), (2.0, 1.0, 0.502), (2.0, float("nan"), 0.5)):
        assert "losses" in compare_training.differing(row, ours, TrainedContender("peer", [1.0], losses))
    other = TrainedContender("peer", [1.0])
    other.parameters = 8
    assert "8 parameters" in compare_training.differing(row, ours, other)


@test
def losses_over_gloo_and_lockstep_must_be_equal():
    same = {"gloo": [2.0, 1.0], "lockstep": [2.001, 1.0], "alone": [9.0, 9.0]}
    assert compare_torch_backend.differing(same) is None
    for wrong in ([2.01, 1.0], [2.0, float("nan")]):
        assert "over Lockstep" in compare_torch_backend.differing({**same, "lockstep": wrong})
    found = {"turns": {"gloo": [4.0, 6.0, 8.0], "lockstep": [2.0, 2.0, 2.0], "alone": [1.0, 1.0, 1.0]}, "bytes": 10**6,
             "steps": 3, "losses": same}
    row = compare_torch_backend.row(2, found)
    assert (row["ratio"], row["spread"], row["spread_is"], row["turns"]) == (3.0, [2.0, 4.0], "lowest to highest", 3), row


run()
