# SPDX-License-Identifier: Apache-2.0
"""`lockstep paper`: what is printed and written follows from the measured rows. Nothing here looks at how
long something took."""

import csv
import html.parser
import io
import json
import math
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from sentences import says, sentence
from tap import BUILD, SOURCE, Skip, command, run, test

LONG = os.environ.get("TEST_LONG") == "1"
SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-paper-test-")
TINY = ("--model", "mlp-tiny", "--steps", "3", "--turns", "3", "--sizes", "64K,1M", "--parameters", "250000")
NAMES = ["fig2", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "variance", "compression", "asynchrony", "server",
         "tradeoff", "alpa", "moe", "pipeline", "cs336", "questions", "backends", "arithmetic", "taxonomy"]
NOTEBOOK = ["bucket_size", "model", "backend", "world_size", "global_batch_size", "warmup_steps", "benchmark_steps",
            "step_time_avg_s", "step_time_std_s", "comm_time_avg_s", "comm_time_std_s", "comm_frac_avg",
            "comm_frac_std"]


def paper(*arguments, **options):
    """(status, output, errors)"""
    done = subprocess.run([BUILD / "lockstep", "paper", *arguments], text=True, capture_output=True, timeout=300,
                          stdin=subprocess.DEVNULL, **options)
    return done.returncode, done.stdout, done.stderr


def result_of(name, *arguments):
    status, output, errors = paper(name, *TINY, "--format", "json", *arguments)
    assert status == 0, errors
    return json.loads(output)


def environment_with(*tools, **more):
    """PATH has these tools alone."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH.name))
    for tool in tools:
        (folder / tool).symlink_to(shutil.which(tool) or "/bin/true")
    return dict(os.environ, PATH=str(folder), **more)


def rows_of(table):
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row)) for row in table["rows"]]


@test
def the_list_has_every_experiment_and_all_say_where_they_are_from():
    status, output, _ = paper("list")
    assert status == 0 and [line.split()[0] for line in output.splitlines()] == NAMES, output
    assert all("(" in line for line in output.splitlines())


@test
def the_lectures_sums_are_those_of_the_lectures():
    tables = result_of("arithmetic")["tables"]
    values = {(t, row["quantity"], row["unit"]): row["value"] for t, table in enumerate(tables) for row in
              rows_of(table)}
    assert 148.9 < values[0, "time", "years"] < 149.1  # the lectures: 150
    assert 148.4 < values[0, "time by the authors' count", "years"] < 148.6
    assert values[1, "weights, 16 bit", "GB"] == 350 and values[1, "one H100", "GB"] == 80
    assert values[1, "with gradients and Adam", "GB"] == 2800 and values[1, "GPUs for the weights alone", ""] == 4.375
    assert abs(values[2, "into the server", "GiB/s"] - 73.1) < 0.05
    assert values[2, "out of the server", "GiB/s"] == values[2, "into the server", "GiB/s"]
    assert abs(values[2, "ring all-reduce, a worker", "GiB/s"] - 0.569) < 0.0005


@test
def the_taxonomy_names_what_is_in_the_tree():
    rows = rows_of(result_of("taxonomy")["tables"][0])
    headers = "".join(path.read_text() for path in (SOURCE / "include/lockstep").glob("*.h"))
    names = "".join(path.read_text() for folder in ("src/comm/algorithm", "src/schedule") for path in (SOURCE / folder).rglob("*.c"))
    for row in rows:
        here = row["in Lockstep"]
        assert all(re.search(rf"\b{name}\(", headers) for name in re.findall(r"\bls_\w+", here)), row
        assert all((SOURCE / path).is_dir() for path in re.findall(r"\bsrc/[\w/]+", here)), row
        assert all(f'"{name}"' in names for name in re.findall(r'"(\w+)"', here)), row
        for words in re.findall(r"\blockstep (\w+ \w+)", here):
            assert command(BUILD / "lockstep", *words.split(), "--help").startswith(f"usage: lockstep {words}"), row
    assert sum("ls_" in row["in Lockstep"] for row in rows) >= 5, rows


@test
def the_parts_of_a_step_add_up_and_the_claim_follows_from_the_turns():
    result = result_of("fig6", "--transport", "tcp")
    rows = rows_of(result["tables"][0])
    says(rows[0]["medium"], "TCP of one host")
    assert [row["reduction"] for row in rows] == ["after backward", "overlapped", "local"], rows
    for row in rows:
        parts = sum(row[part] for part in ("forward", "backward", "exposed", "optimizer"))
        assert 0.5 * row["step"] <= parts <= 1.001 * row["step"], row
    assert rows[2]["exposed"] == 0
    claim, = result["claims"]
    assert claim["lowest"] <= claim["ratio"] <= claim["highest"] and claim["turns"] == 3
    assert claim["verdict"] == ("holds" if claim["highest"] < 1 else "fails" if claim["lowest"] >= 1 else "undecided"), claim
    assert result["machine"]["cores"] == os.cpu_count() and result["command"].endswith(
        "fig6 --transport tcp --model mlp-tiny --parameters 250000 --steps 3 --turns 3"), result["command"]


@test
def replayed_tables_say_so_and_name_the_timeline():
    status, output, errors = paper("fig6", "--transport", "shm", "--model", "resnet18-cifar", "--compute", "replay", "--speed",
                                   "20", "--steps", "2", "--turns", "2", "--format", "json")
    assert status == 0, errors
    result = json.loads(output)
    says(result["tables"][0]["title"], "Parts of a step, buckets of 25 MB, 2 ranks, %s; means")
    assert ", replayed; " in result["tables"][0]["title"], result["tables"]
    note = result["notes"][0]
    says(note, "%s: replayed (timeline %.100s, batch %.0f, recorded on %.250s%s).")
    says(note, "; %g times as fast")
    assert "timeline resnet18-cifar, batch 8, recorded on AMD EPYC, 2 cores, " in note and result["command"].endswith(
        "fig6 --transport shm --model resnet18-cifar --compute replay --speed 20 --steps 2 --turns 2"), result
    computed = result_of("fig6", "--transport", "shm")
    says(computed["notes"][0], "%s: computed on this machine.")
    assert ", computed; " in computed["tables"][0]["title"]
    status, _, errors = paper("fig6", "--model", "vit", "--compute", "replay")
    assert status == 1 and 'timeline "vit": it is neither a file nor one of' in errors, errors


@test
def skipped_synchronisations_are_means_over_cycles_on_two_media():
    result = result_of("fig10")
    titles = [table["title"] for table in result["tables"]]
    assert ["shared memory" in t for t in titles] == [True, False] and "TCP of one host" in titles[1], titles
    assert all("replayed" in t for t in titles)
    for table in result["tables"]:
        rows = rows_of(table)
        assert [(row["ranks"], row["every"]) for row in rows] == [(n, k) for n in (2, 4, 8) for k in (1, 2, 4, 8)]
        for at, row in enumerate(rows):
            each = rows[at - at % 4]
            assert math.isclose(row["saved"], 100 * (1 - row["step"] / each["step"]), abs_tol=1e-6), row
            assert len(row["steps"]) == 3 * math.ceil(3 / row["every"]) and row["series"] == f"mlp-tiny, {row['ranks']} ranks"
    assert [claim["left"] for claim in result["claims"]] == ["mlp-tiny, 8 ranks, every 8th"] * 2
    assert len(rows_of(result_of("fig10", "--transport", "shm")["tables"][0])) == 12


@test
def scaling_is_replayed_to_8_ranks_and_modelled_to_256():
    result = result_of("fig9", "--transport", "shm")
    table, = result["tables"]
    rows = rows_of(table)
    assert "replayed and modelled" in table["title"]
    assert [(row["scaling"], row["ranks"], row["step is"]) for row in rows] == [
        (kind, 2**k, "recorded" if k == 0 else "replayed" if k <= 3 else "modelled") for kind in ("weak", "strong")
        for k in range(9)]
    weak, strong = rows[:9], rows[9:]
    assert math.isclose(strong[0]["step"], 4 * weak[0]["step"], rel_tol=1e-9)  # 256 samples and 64 on one rank
    for row in rows:
        one = rows[0] if row["scaling"] == "weak" else rows[9]
        times = row["ranks"] if row["scaling"] == "weak" else 1
        assert math.isclose(row["speedup"], times * one["step"] / row["step"], rel_tol=1e-9), row
        # never shorter than what a rank computes
        assert row["step"] >= (1 if row["scaling"] == "weak" else 4 / row["ranks"]) * weak[0]["step"] * (1 - 1e-9), row
        if row["step is"] != "replayed":
            assert row["model"] == row["step"] and row["model is off by"] == "-"
        else:
            assert row["model is off by"] == f"{100 * (row['model'] / row['step'] - 1):+.0f}", row
    claim, = result["claims"]
    assert claim["factor"] == 2 and claim["left"] == "mlp-tiny, 8 ranks"


@test
def groups_in_turns_have_a_row_each():
    result = result_of("fig12", "--transport", "tcp")
    table, = result["tables"]
    assert [row["groups"] for row in rows_of(table)] == ["1", "3", "5"] and "4 ranks, TCP of one host, replayed" in table["title"]
    claim, = result["claims"]
    assert claim["relation"] == "<" and claim["factor"] == 1 and "3 groups" in claim["left"]


@test
def under_noise_a_synchronised_step_is_expected_to_last_as_long_as_the_slowest_rank():
    result = result_of("variance")
    rows = rows_of(result["tables"][0])
    assert [(row["noise"], row["reduction"]) for row in rows] == [
        (noise, mode) for noise in ("0", "0.1", "0.3") for mode in ("local", "overlap", "naive")]
    quiet = rows[0]["expected"]
    assert rows[1]["expected"] == quiet <= rows[0]["step"] * (1 + 1e-9)
    compute = (rows[3]["expected"] - quiet) / 0.1  # forward and backward
    for row, share in zip(rows[3:], (0.1, 0.1 * 25 / 12, 0.1 * 25 / 12, 0.3, 0.3 * 25 / 12, 0.3 * 25 / 12)):
        assert math.isclose(row["expected"], quiet + compute * share, rel_tol=1e-6), row
        assert row["longest"] == max(row["steps"]) and row["median"] in row["steps"], row
    assert [claim["relation"] for claim in result["claims"]] == [">", "<"]


@test
def a_claim_is_the_median_of_the_ratios_of_the_turns():
    result = result_of("fig7", "--transport", "shm")
    rows = {row["bucket"]: row for row in rows_of(result["tables"][0])}
    assert list(rows) == ["0", "1", "5", "10", "25", "50", "auto"]
    assert rows["0"]["buckets"] == 6 and rows["25"]["buckets"] == 1  # a bucket for each of 6 parameters
    for row in rows.values():
        assert len(row["steps"]) == 9 and math.isclose(statistics.mean(row["steps"]), row["step"], rel_tol=1e-9)
        assert math.isclose(statistics.stdev(row["steps"]), row["deviation"], rel_tol=1e-6)
    turns = [[statistics.median(rows[size]["steps"][3 * t:3 * t + 3]) for t in range(3)] for size in ("25", "0")]
    ratios = sorted(a / b for a, b in zip(*turns))
    claim = result["claims"][0]
    for key, ratio in zip(("lowest", "ratio", "highest"), ratios):
        assert math.isclose(claim[key], ratio, rel_tol=1e-9), (claim, ratios)


@test
def four_ranks_beside_other_media_go_without_two_sizes():
    status, output, errors = paper("fig8", *TINY, "--format", "json", env=environment_with("sh", "rm", "grep"))
    assert status == 0, errors
    result = json.loads(output)
    assert [row["bucket"] for row in rows_of(result["tables"][0])] == ["0", "5", "10", "25", "50"]
    assert [claim["right"] for claim in result["claims"]] == ["0 MB"], result["claims"]
    says(result["notes"][1], "Each row: %.0f turns of %.0f untimed and %.0f timed steps, after at least %.0f steps of warm-up.")
    assert "fig8 measures 1 MB and auto only with --transport or --link" in "\n".join(result["notes"])


@test
def the_notebooks_table_has_its_keys_in_markdown_and_csv():
    status, output, errors = paper("cs336", *TINY, "--format", "markdown")
    assert status == 0, errors
    lines = [line.strip("|").split("|") for line in output.splitlines() if line.startswith("|")]
    keys = [line[0].strip() for line in lines]
    at = keys.index("bucket_size")
    assert [k for k in keys[at:] if not k.startswith("-")][:len(NOTEBOOK)] == NOTEBOOK, keys
    assert [name.strip() for name in lines[at][1:]] == [
        "naive", "flat", "overlap", "1 = flat", "10 = flat", "100 = flat", "1000 = flat"], lines[at]
    status, output, _ = paper("cs336", *TINY, "--format", "csv")
    first, second, third, fourth = output.split("\n\n")
    assert fourth.split() == ["backend,why", "NCCL,no", "GPU", "here"], fourth
    assert all(abs(float(row[-1])) <= 3.0 for row in list(csv.reader(io.StringIO(third)))[1:]), third  # off by at most 3 %
    table = list(csv.DictReader(io.StringIO(first)))
    assert [(row["world_size"], row["size_mb"]) for row in table] == [
        (str(n), size) for n in (2, 4, 6) for size in ("0.064", "1")], table
    assert [row[0] for row in csv.reader(io.StringIO(second))][:len(NOTEBOOK)] == NOTEBOOK


HOOKS = ["plain", "bf16", "fp16", "int8", "one_bit:start=50", "powersgd:rank=4", "top_k:density=0.05", "random_k:density=0.1"]


def learnt(*arguments):
    """(rows by hook, result) of `lockstep paper compression` on digits."""
    status, output, errors = paper("compression", "--model", "digits", *arguments, "--format", "json")
    assert status == 0, errors
    result = json.loads(output)
    table, curves = result["tables"]
    says(table["title"], "%s (%s): time to a held-out loss of %g, %d ranks, %s")
    rows = {row["hook"]: row for row in rows_of(table)}
    assert list(rows) == HOOKS and {row["hook"] for row in rows_of(curves)} == set(HOOKS)
    seeds = len(rows["plain"]["times"])
    assert {(row["hook"], row["seed"]) for row in rows_of(curves)} == {(hook, k + 1) for hook in HOOKS for k in range(seeds)}
    says(result["plots"][0]["says"], "a line for each seed")
    return rows, result


@test
def a_hook_that_does_not_reach_the_loss_has_no_time_and_sends_what_it_says():
    rows, result = learnt("--steps", "12", "--turns", "1", "--transport", "tcp")
    for row in rows.values():
        assert row["time"] is row["steps"] is row["ratio"] is None and row["sooner"] == "-" and row["loss"] > 0, row
        assert row["reached"] == 0
    whole = 4 * (64 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10) * 1e-3  # of 2 ranks: 8 d (n-1)/n, in KB
    for hook, share in (("plain", 1), ("bf16", 1 / 2), ("fp16", 1 / 2), ("int8", 1 / 4), ("random_k:density=0.1", 1 / 10)):
        assert math.isclose(rows[hook]["sent"], share * whole, rel_tol=0.02), (hook, rows[hook]["sent"], whole)
    assert result["claims"] == []
    medians, command_line, limits = result["notes"]
    says(command_line, 'Measured by `lockstep bench learn` with --comm "%s".')
    says(command_line, "plain bf16 fp16 int8 one_bit:start=50 powersgd:rank=4 top_k:density=0.05 random_k:density=0.1")
    says(medians, "Medians over the seeds, and the lowest and highest of them; `ratio` is the median of the seeds' times by those "
                  "of plain DDP, and `sooner` says who reaches the loss first with every seed. No time: not every seed reached "
                  "the loss in that many steps. The clock stops while held-out losses are computed, every 5 steps. All hooks have "
                  "the learning rate of plain DDP.")
    says(limits, "Limits: a link is a pair of network namespaces of this host, with `tc tbf` at both ends: its rate, bursts of "
                 "32 KB (16 KB at 100 Mbit/s) that pass at once, 20 ms of queue. Data between hosts are encrypted. Both ranks "
                 "share the cores of this host. The networks are small: a step computes for some milliseconds.")


@test
def who_reaches_the_loss_sooner_follows_from_the_seeds():
    rows, result = learnt("--steps", "120", "--turns", "2", "--transport", "shm")
    plain = rows["plain"]
    assert plain["time"] and plain["sooner"] == "-" and plain["sent"] is None, plain
    for hook, row in rows.items():
        if row["time"] is None:
            assert row["sooner"] == "plain" and row["reached"] < 2, row
            continue
        assert (row["lowest"], row["time"], row["highest"]) == (min(row["times"]), max(row["times"]), max(row["times"])), row
        ratios = [a / b for a, b in zip(row["times"], plain["times"])]
        if hook != "plain":
            assert math.isclose(row["ratio"], max(ratios), rel_tol=1e-9), row
            assert row["sooner"] == ("hook" if max(ratios) < 1 else "plain" if min(ratios) > 1 else "undecided"), row
    assert rows["bf16"]["steps"] == plain["steps"] and rows["one_bit:start=50"]["loss"] > 0
    claim, = result["claims"]
    assert (claim["left"], claim["relation"], claim["turns"]) == ("digits, powersgd:rank=4", ">", 2), claim
    says(claim["claim"], "where the link is not slow plain DDP reaches it sooner")
    says(result["tables"][0]["title"], "MLP 64-512-512-10, SGD with momentum")


@test
def without_links_compression_says_that_it_skips_them():
    status, output, errors = paper("compression", "--model", "text", "--steps", "3", "--turns", "1", "--format", "json",
                                   env=environment_with("sh", "rm", "tc", "nsenter"))
    assert status == 0, errors
    result = json.loads(output)
    says(result["tables"][0]["title"], "GPT 1 layer, d 128, T 32, bytes, AdamW")
    assert len(result["tables"]) == 2
    says(result["notes"][0], "SKIP 1 Gbit/s and 100 Mbit/s: network namespaces cannot be made here; it needs root, ip, tc and nsenter.")


def straggler(name, *arguments):
    """(rows by mode, each with those of its seeds; what was printed)"""
    file = pathlib.Path(SCRATCH.name) / name
    printed = command(BUILD / "lockstep", "bench", "straggler", "digits", "-n", 4, "--pace", 2, "--seconds", 0.25, "--json", file,
                      *arguments)
    rows = {}
    for row in json.loads(file.read_text()):
        rows.setdefault(row["mode"], []).append(row)
    return rows, printed


@test
def each_mode_has_the_pushes_that_its_name_says():
    modes = "ddp sync backup=1 async stale=1 local=2 diloco=2"
    rows, printed = straggler("modes", "--modes", modes, "--every", 2, "--slow", 3)
    assert list(rows) == modes.split(), rows
    for mode, (row,) in rows.items():
        assert mode in printed and row["workers"] == 3 and row["slow"] == 3 and row["pace_ms"] == 2, row
        assert len(row["losses"]) == len(row["times"]) > 1 and row["loss"] == row["losses"][-1], row
        assert row["times"] == sorted(row["times"]) and row["trained_seconds"] == row["times"][-1] > 0, row
        assert (row["stale"] != []) == (mode in ("sync", "backup=1", "async", "stale=1")), row
        if row["stale"]:
            assert sum(row["stale"]) + row["dropped"] == row["steps"], row
        else:
            assert row["steps"] % (3 * 2) == 0, row  # workers end after the same round
    for mode in ("sync", "backup=1"):  # a version is of the newest gradients
        assert len(rows[mode][0]["stale"]) == 1, rows[mode]
    assert rows["backup=1"][0]["dropped"] > 0 == rows["sync"][0]["dropped"]
    assert len(rows["async"][0]["stale"]) > 1


@test
def a_loss_is_reached_at_the_first_copy_that_has_it():
    rows, printed = straggler("target", "--modes", "ddp local=4", "--seeds", 2, "--target", 2)
    for row in (*rows["ddp"], *rows["local=4"]):
        first = [time for time, loss in zip(row["times"], row["losses"]) if loss <= 2]
        assert row["reached"] == bool(first) and row["seconds"] == (first or row["times"][-1:])[0], row
    assert [row["seed"] for row in rows["ddp"]] == [1, 2]
    assert rows["ddp"][0]["losses"][0] == rows["local=4"][0]["losses"][0] != rows["ddp"][1]["losses"][0]
    _, printed = straggler("never", "--modes", "ddp", "--target", 1e-9)
    assert "  not reached" in printed, printed


@test
def asynchrony_between_hosts_is_skipped():
    result = result_of("asynchrony", "--link", "1gbit")
    assert result["tables"] == []
    says(result["notes"][0], "SKIP: the workers are ranks of one host; leave --link out.")


@test
def a_star_of_hosts_carries_k_gradients_into_the_server_and_out_of_it():
    result = result_of("server", "--transport", "shm")
    assert result["tables"] == []
    says(result["notes"][0], "SKIP: a star of hosts needs --link, and for it root, ip, tc and nsenter.")
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nsenter"))):
        raise Skip("only root can make network namespaces, with ip, tc and nsenter (apt-get install iproute2)")
    before = left_namespaces()
    result = result_of("server", "-n", "3", "--link", "1gbit")
    assert result["command"].endswith("--workers 3 --steps 3 --turns 3") and left_namespaces() == before
    table, = result["tables"]
    says(table["title"], "Gradients of %lld bytes, hosts around a switch, %s/s")
    row, = rows_of(table)
    assert row["workers"] == 3 and row["in"] == row["out"] == 3 * 1000000, row
    ratio = (row["push"] + row["pull"]) / row["ring"]
    assert math.isclose(row["server / ring"], ratio, rel_tol=1e-9) and row["expected"] == 4.5, row
    assert math.isclose(row["off"], 100 * (ratio / 4.5 - 1), rel_tol=1e-6), row
    assert math.isclose(row["floor"], 2 * 2 / 3 * 1000000 * 8e-6, rel_tol=1e-9), row
    claim, = result["claims"]
    says(claim["claim"], "a server takes K^2/(K-1) times as long as a ring, less a tenth at most")
    assert math.isclose(claim["factor"], 0.9 * 4.5) and "for 3 workers" in claim["left"] and claim["turns"] == 3
    says(claim["left"], "a server for %d workers")
    says(result["notes"][0], "push: each worker sends its gradients to the server (in); pull: the server sends each the parameters "
                             "(out). at once: an all-reduce via the server, which sends while it receives (--algorithm root). divided: each "
                             "worker is the server of its share (--algorithm direct). server / ring is that of push and pull, one "
                             "after the other; K^2/(K-1) is expected.")
    says(result["notes"][1], "Each host is a network namespace of this machine with a cable to a switch that carries %s/s each way "
                             "(`tc tbf` at both ends). Data are not encrypted, since all hosts share the cores of this machine: "
                             "where ring is far above its floor, which the rate sets, the cores are the limit, and not the "
                             "cables.")


@test
def division_between_operators_and_within_them_send_what_is_predicted():
    result = result_of("tradeoff", "--transport", "shm")
    table, = result["tables"]
    says(table["title"], "A step of a GPT on %d hosts around a switch, %s/s; layers sleep")
    rows = rows_of(table)
    assert [(row["parallelism"], row["mesh"]) for row in rows] == [
        ("between operators", "pp=4,tp=1"), ("both", "pp=2,tp=2"), ("within operators", "pp=1,tp=4")]
    assert all(row["step"] is None and row["compute"] > 500 and row["predicted step"] > row["compute"] / 2 for row in rows), rows
    columns = str(list(rows[0]))
    says(columns, "predicted idle")
    says(columns, "predicted sent")
    says(columns, "predicted communication")
    says(columns, "predicted step")
    assert rows[0]["predicted idle"] > rows[1]["predicted idle"] > rows[2]["predicted idle"] == 0, rows
    sent = [row["predicted sent"] for row in rows]
    # 8 micro-batches of 128 x 256 numbers: over two cuts; and 8.5 layers of a rank sum 4 of them around 4 ranks
    assert sent == [2 * 8 * 128 * 1024, 18874368, 8.5 * 4 * 1.5 * 8 * 128 * 1024], sent
    first, second = result["claims"]
    says(first["claim"], "division between operators idles more than division within them")
    says(first["left"], "idle time with tp=4")
    says(first["right"], "with pp=2,tp=2")
    says(second["left"], "idle time with pp=2,tp=2")
    says(second["right"], "with pp=4")
    says(result["notes"][0], "compute: what the rank sleeps that has most to do, as a device of 20 GFLOP/s would. idle: what a step "
                             "takes beyond that in shared memory. communication: what it takes longer over the link. sent: by the "
                             "rank that sends most. Predicted: `lockstep sim` without the sum of gradients and the optimizer; its "
                             "idle time is that over the link, and communication of stages that others hide is none.")
    says(result["notes"][1], "SKIP: hosts around a switch need root, ip, tc and nsenter; steps over the link are predicted only.")
    if LONG and os.geteuid() == 0 and all(map(shutil.which, ("ip", "tc", "nsenter"))):
        result = result_of("tradeoff")
        assert [row["sent"] for row in rows_of(result["tables"][0])] == sent
        says(result["claims"][2]["claim"], "division between operators communicates less than division within them")
        says(result["claims"][2]["left"], "bytes sent with pp=4")
        says(result["claims"][3]["left"], "bytes sent with pp=2,tp=2")
        says(result["claims"][3]["right"], "with tp=4")
        # bytes are counted, so one number decides
        assert [(claim["verdict"], claim["turns"], claim["counted"]) for claim in result["claims"][2:]] == [("holds", 1, True)] * 2, result


def roofline(flops, width, m, n, k):
    return max(2 * m * n * k / flops, width * (m * k + k * n + m * n) / 900e9)


def gpt_step(plan):
    """Of the GPT with 350 million parameters on one device, by the formulas of docs/guide/simulator.md."""
    layers, h, heads, vocabulary, context = 24, 1024, 16, 51200, 1024
    micro_batches, batch = map(int, re.search(r"(\d+) x (\d+)", plan).groups())
    n = batch * context

    def matmul(*size):
        return roofline(125e12, 2, *size)

    def moved(elements):
        return 2 * n * h * elements / 900e9
    weights = matmul(n, 3 * h, h) + matmul(n, h, h) + matmul(n, 4 * h, h) + matmul(n, h, 4 * h)
    attention = 2 * matmul(n * heads, context, h // heads)
    forward, backward = weights + attention + moved(10 + 8), 2 * weights + 2 * attention + moved(12 + 12)
    again = forward if "recomputed" in plan else 0
    head = 3 * matmul(n, vocabulary, h) + 3 * 2 * n * vocabulary / 900e9
    optimizer = 32 * (layers * (12 * h * h + 13 * h) + 2 * vocabulary * h + context * h + 2 * h) / 900e9
    return micro_batches * (layers * (forward + backward + again) + head + moved(2 + 3)) + optimizer


def resnet_costs(layers, base, width, images):
    """(parameters, floating-point operations of an image, seconds of a micro-batch on one device)"""
    parameters = 49 * 3 * base + 2 * base + 32 * base * 1024 + 1024
    products = [(112 * 112, base, 147), (1, 1024, 32 * base)]
    side, channels = 56, base
    for i, blocks in enumerate((3, 4, 6 if layers == 50 else 23, 3)):
        f = base * 2**i
        for k in range(blocks):
            before, side = side, side // 2 if i > 0 and k == 0 else side
            parameters += channels * f + 9 * width * f * f + 4 * width * f * f + 2 * (f + width * f + 4 * f)
            products += [(before**2, f, channels), (side**2, width * f, 9 * f), (side**2, 4 * f, width * f)]
            if k == 0:  # 4 f channels from another number, or a stride
                parameters += channels * 4 * f + 2 * 4 * f
                products += [(side**2, 4 * f, channels)]
            channels = 4 * f
    seconds = sum(roofline(15.7e12, 4, images * pixels, out, inputs) + 16 * images * pixels * out / 900e9
                  for pixels, out, inputs in products)
    return parameters, sum(6 * pixels * out * inputs for pixels, out, inputs in products), 4 * seconds


@test
def alpas_figure_is_what_the_formulas_say():
    result = result_of("alpa")
    says(result["plots"][0]["says"], "predicted by the cost model: without spread")
    assert result["claims"] == [] and (not LONG or result_of("alpa")["tables"] == result["tables"]), "the figure is not measured"
    gpt, moe, resnet = map(rows_of, result["tables"])
    assert [row["devices"] for row in gpt[::3]] == [row["devices"] for row in resnet[::3]] == [1, 4, 8, 16, 32, 64]
    h, mixed, dense = 2048, 16, 16  # the largest mixture: layers of attention, 64 experts or one MLP of 8 h
    experts = mixed * (64 * (16 * h * h + 9 * h) + 64 * h) + dense * (16 * h * h + 9 * h)
    assert math.isclose(moe[-1]["parameters"], experts + 32 * (4 * h * h + 8 * h) + (2 * 32000 + 1024) * h + 2 * h), moe[-1]
    step = gpt_step(gpt[0]["plan"])  # 72 b s l h^2 (1 + s/6h + V/12lh)
    assert math.isclose(gpt[0]["rate"] * 1e15, 1024 * 1024 * 72 * 24 * 1024**2 * (1 + 1 / 6 + 51200 / 12 / 24 / 1024) / step, rel_tol=1e-9)
    for row, (layers, base, width) in zip(resnet[::3], ((50, 160, 2), (50, 320, 2), (50, 448, 2), (50, 640, 2), (50, 320, 16),
                                                        (101, 320, 16)), strict=True):
        assert math.isclose(row["parameters"], resnet_costs(layers, base, width, 1)[0]), row
    micro_batches, images = map(int, re.search(r"(\d+) x (\d+)$", resnet[0]["plan"]).groups())
    parameters, operations, seconds = resnet_costs(50, 160, 2, images)
    step = micro_batches * seconds + 32 * parameters / 900e9
    assert math.isclose(resnet[0]["rate"] * 1e15, 1536 * operations / step, rel_tol=1e-9), resnet[0]
    for rows in (gpt, moe, resnet):
        for intra, inter, both in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
            assert [row["parallel"] for row in (intra, inter, both)] == ["intra", "inter", "both"]
            assert both["rate"] >= max(intra["rate"], inter["rate"]), (intra, inter, both)
            for row in (intra, inter, both):
                assert 0 <= row["of the peak"] < 100 and row["memory"] <= 16 and (row["rate"] > 0) == (row["plan"] != "does not fit"), row
        assert both["devices"] == 64 and both["rate"] > 0, both


@test
def experts_have_a_dense_twin():
    result = result_of("moe", "-n", "2")
    table, = result["tables"]
    says(table["title"], "A GPT with 8 experts, of which a token visits one, beside one without; %s")
    row, = rows_of(table)
    assert row["ranks"] == 2 and math.isclose(row["experts / dense"], row["experts"] / row["dense"], rel_tol=1e-9), row
    # 2 of 4 blocks: 8 networks of width 128 and 512 in place of one, and a gate
    assert row["experts parameters"] - row["dense parameters"] == 2 * (7 * (2 * 128 * 512 + 128 + 512) + 8 * 128), row
    says(result["claims"][0]["claim"], "a model of several times as many parameters takes less than twice as long: a token visits one "
                                       "expert")
    says(result["claims"][0]["left"], "a step with experts, %d rank%s")
    says(result["claims"][0]["right"], "of the dense twin")
    tokens_ms = row["dense"] * row["dense step"]
    assert math.isclose(statistics.median(row["dense turns"]), row["dense"], rel_tol=0.2) and len(row["dense turns"]) == 3, row
    assert all(rate > 0 for rate in row["experts turns"]) and tokens_ms > 0 and result["plots"][0]["y"] == ["dense", "experts"]
    says(result["plots"][0]["says"], "medians; bars: slowest to fastest step")
    says(result["plots"][0]["title"], "Throughput with and without experts")
    says(result["plots"][0]["y_label"], "tokens a second")
    columns = str(list(row))
    says(columns, "dense turns")
    says(columns, "experts turns")
    says(columns, "dense step")
    says(columns, "experts step")
    says(columns, "dense parameters")
    says(columns, "experts parameters")
    says(result["notes"][0], "Every rank has its own tokens, so the batch grows with the ranks. load: rows of the busiest expert by "
                             "their mean. sent: by rank 0 along ep, in shared memory what it passed to its peers. Ranks share the "
                             "cores of this machine, dense and with experts alike.")


@test
def gpipe_and_pipedream_are_drawn_as_the_lectures_do():
    result = result_of("pipeline")
    drawing, idle, memory = map(rows_of, result["tables"])
    says(result["tables"][0]["title"], "As the lectures draw them: F a forward, B a backward, .. idle")
    assert drawing[3]["time"] == ".. .. .. F0 F1 F2 F3 F4 F5 B0--- B1--- B2--- B3--- B4--- B5--- .. .. .. .. .. ..", drawing
    assert drawing[7]["time"].startswith(".. .. .. F0 B0--- F1 B1--- F2 B2--- F3 "), drawing
    says(result["tables"][1]["title"], "Minibatches of 4 micro-batches through 4 stages")
    assert [row["minibatches"] for row in idle] == [1, 2, 4, 8]
    assert [round(row["pipedream expected"], 1) for row in idle] == [42.9, 27.3, 15.8, 8.6] and all(
        round(row["gpipe expected"], 1) == 42.9 for row in idle), idle
    says(result["tables"][2]["title"], "Kept at most: micro-batches' activations, versions of weights beside the newest")
    assert [(row["gpipe activations"], row["pipedream activations"], row["gpipe old weights"], row["pipedream old weights"])
            for row in memory] == [(4, 4, 0, 3), (4, 3, 0, 2), (4, 2, 0, 1), (4, 1, 0, 0)], memory
    says(result["claims"][0]["claim"], "without a flush a pipeline idles less (Narayanan et al. 2019, figure 4)")
    says(result["claims"][0]["left"], "PipeDream, %d minibatches")
    for row in idle:
        assert len(row["gpipe turns"]) == len(row["pipedream turns"]) == 3 and all(0 < share < 100 for share in row["pipedream turns"]), row
    assert all(claim["turns"] == 3 for claim in result["claims"])
    says(result["plots"][0]["says"], "medians; bars: lowest to highest step; expected: by the formula")
    says(result["plots"][0]["title"], "Idle time of a pipeline")
    says(result["plots"][0]["y_label"], "idle share, %")
    columns = str(list(idle[0]))
    says(columns, "gpipe turns")
    says(columns, "pipedream turns")
    says(columns, "gpipe idle")
    says(columns, "pipedream idle")
    says(columns, "gpipe expected")
    says(columns, "pipedream expected")
    columns = str(list(memory[0]))
    says(columns, "gpipe activations")
    says(columns, "pipedream activations")
    says(columns, "gpipe old weights")
    says(columns, "pipedream old weights")
    says(result["notes"][0], "GPipe waits (P-1)(F+B) for each minibatch, PipeDream once. A forward and each half of a backward sleep "
                             "%s ms. GPipe's times are those of one minibatch, as often as there are some. `lockstep plan "
                             "schedule` draws any other.")


@test
def sizes_that_do_not_fit_into_memory_are_left_out_with_a_note():
    result = result_of("cs336", "--sizes", "64K,100G")
    assert {row["size_mb"] for row in rows_of(result["tables"][0])} == {0.064}
    assert sum(note.startswith("Left out: 100G with") for note in result["notes"]) == 3, result["notes"]


@test
def the_knee_is_the_smallest_size_near_the_best_and_the_claims_follow_from_the_turns():
    result = result_of("fig2", "--transport", "shm")
    assert result["command"].endswith("--parameters 250000 --steps 3 --turns 3"), result["command"]
    rows, knees, ready = map(rows_of, result["tables"])
    assert ready[-1]["gradients"] > 400 and 60 < ready[-1]["ready parameters"] < 61  # ResNet-152
    for key in ready[0]:
        assert [row[key] for row in ready] == sorted(row[key] for row in ready)
    curves = {}
    for row in rows:
        assert row["calls"] == -(-250000 // row["per call"]) and statistics.median(row["turns"]) == row["time"], row
        curves.setdefault((row["backend"], row["algorithm"], row["ranks"]), []).append(row)
    assert [(*key, len(curve)) for key, curve in curves.items()] == [
        ("shared memory", "chosen", 2, 5), ("TCP of one host", "chosen", 4, 1), ("TCP of one host", "tree_stages", 4, 1)]
    for key, knee in zip(curves, knees):
        best = min(curves[key], key=lambda row: row["time"])
        near = [row["per call"] for row in curves[key] if row["time"] <= 1.1 * best["time"]]
        assert (knee["best"], knee["knee"]) == (best["per call"], min(near)), (key, knee)
    size, tree = result["claims"]  # at 250,000 parameters the tree is measured with one size
    curve, = [c for (medium, *_), c in curves.items() if medium == "shared memory"]
    at_knee, = [row for row in curve if row["per call"] == knees[0]["knee"]]
    large = at_knee if at_knee is not curve[0] else curve[-1]
    ratio = statistics.median(a / b for a, b in zip(large["turns"], curve[0]["turns"]))
    assert math.isclose(size["ratio"], ratio, rel_tol=1e-9) and size["relation"] == "<" and tree["relation"] == ">"


@test
def skipping_synchronisation_trains_with_the_same_bits_in_every_run():
    status, output, errors = paper("fig11", "--steps", "82" if LONG else "3", "--quick", "--format", "json")  # two seeds
    assert status == 0, errors
    result = json.loads(output)
    rows = rows_of(result["tables"][0])
    assert [row["every"] for row in rows] == ["1", "2", "4", "8"] * 2 and len(rows[0]["losses at the end"]) == 2
    if not LONG:
        return  # the rest takes a minute
    for row in rows:
        assert len(row["losses at the end"]) == 2 and 0 <= row["accuracy"] <= 100
        ends = row["losses at the end"]
        assert math.isclose(statistics.mean(ends), row["loss at the end"], rel_tol=1e-9)
        assert (row["lowest"], row["highest"]) == (min(ends), max(ends)), row
    assert len({row["loss at the end"] for row in rows}) == 8  # each skips otherwise
    small, large = result["claims"]
    assert (small["relation"], large["relation"]) == ("<", ">")
    for claim, of in ((small, rows[:4]), (large, rows[4:])):
        ratios = [a / b for a, b in zip(of[3]["losses at the end"], of[0]["losses at the end"])]
        assert math.isclose(claim["ratio"], statistics.median(ratios), rel_tol=1e-9) and claim["factor"] == 1.25, claim
    # The paper's two pairs, trained once more: a point of a curve is the mean of a fortieth of both seeds' losses.
    for k, (batch, rate) in enumerate((("8", "0.02"), ("256", "0.06"))):
        seeds = []
        for seed in ("1", "2"):
            path = pathlib.Path(SCRATCH.name) / "pair.json"
            command(BUILD / "lockstep", "bench", "digits", "--batch", batch, "--lr", rate, "--iterations", "82", "--seed", seed,
                    "--json", path)
            seeds.append(json.loads(path.read_text()))
        for row, *trained in zip(rows[4 * k:], *seeds):
            curve = [point for point in rows_of(result["tables"][1 + k]) if point["every"] == row["every"]]
            assert [point["iteration"] for point in curve] == [2 * i + 1.5 for i in range(41)], curve
            pairs = [[statistics.mean(pair) for pair in zip(one["losses"][::2], one["losses"][1::2])] for one in trained]
            for point, *of_seeds in zip(curve, *pairs, strict=True):
                assert all(map(math.isclose, point["seeds"], of_seeds)) and len(point["seeds"]) == 2, (point, of_seeds)
                assert math.isclose(point["loss"], statistics.mean(of_seeds), rel_tol=1e-9), (point, of_seeds)
            assert row["losses at the end"] == [one["final"] for one in trained] and f"batch {batch}, learning rate {rate}" == row["pair"]


@test
def a_network_learns_digits_that_it_has_not_seen():
    path = pathlib.Path(SCRATCH.name) / "digits.json"
    command(BUILD / "lockstep", "bench", "digits", "--skip", "1,4", "--iterations", "300", "--json", path)
    rows = json.loads(path.read_text())
    assert [row["skip"] for row in rows] == [1, 4] and all(row["accuracy"] > 0.9 for row in rows), [
        (row["skip"], row["accuracy"]) for row in rows]
    for row in rows:
        assert len(row["losses"]) == 300 and row["losses"][0] > 2 > 0.5 > row["final"]
    # Until the first synchronisation nothing has stepped: the parameters, and so the losses, are those of the same batches.
    assert rows[0]["losses"][0] == rows[1]["losses"][0] and rows[0]["losses"][1] != rows[1]["losses"][1]


@test
def the_table_of_backends_is_that_of_info():
    environment = dict(os.environ, LOCKSTEP_BACKEND_PATH=str(BUILD / "tests/plugins"))
    status, output, errors = paper("backends", "--format", "json", env=environment)
    assert status == 0, errors
    rows = rows_of(json.loads(output)["tables"][0])
    if rows[0].get("nccl") == "no GPU here":  # a column that info leaves out
        rows = [{name: value for name, value in row.items() if name != "nccl"} for row in rows]
    assert {"native", "loop"} <= set(rows[0])
    shown = subprocess.run([BUILD / "lockstep", "info", "--backends"], text=True, capture_output=True, env=environment).stdout
    lines = [line for line in shown.split("\n\n", 1)[1].splitlines()[1:] if line]
    assert [[*row.values()] for row in rows] == [[line[:22].rstrip(), *line[22:].split()] for line in lines], lines
    of_devices = ("streams", "scaling", "device memory")
    assert any("-" in row.values() for row in rows) and all(row["native"] == "yes" for row in rows if row["function"] not in of_devices)


@test
def all_media_are_measured_or_said_to_be_skipped():
    status, output, errors = paper("fig6", *TINY, "--format", "json", env=environment_with("sh", "rm", "grep"))
    assert status == 0, errors
    result = json.loads(output)
    measured = [table for table in result["tables"] if table["title"] != "Not measured"]
    assert {row["medium"] for table in measured for row in rows_of(table)} == {"shared memory"}
    skipped = [rows_of(table) for table in result["tables"] if table not in measured]
    assert skipped == [[{"backend": "TCP at 1 Gbit/s", "why": "no link here"}, {"backend": "MPI", "why": "no MPI here"},
                        {"backend": "NCCL", "why": "no GPU here"}]], skipped
    says("\n".join(result["notes"]), "TCP at 1 Gbit/s: skipped: network namespaces cannot be made here; it needs root, ip, "
                                     "tc and nsenter.")
    says("\n".join(result["notes"]), "MPI: skipped: %s.")
    says("\n".join(result["notes"]), "NCCL: skipped: no GPU here: %s.")


@test
def a_job_of_mpirun_is_measured_where_there_is_one():
    plugins = BUILD / "src/lockstep/backends"
    status, _, errors = paper("fig6", *TINY, "--transport", "mpi", env=environment_with(
        "sh", "rm", "grep", LOCKSTEP_BACKEND_PATH=str(plugins)))
    assert status == 1
    built = list(plugins.glob("ls_backend_mpi_*.so"))
    if built:
        says(errors, "there is no mpirun of the MPI whose plug-in is here")
    broken = pathlib.Path(SCRATCH.name) / "broken"
    broken.mkdir()
    for mpi in ("openmpi", "mpich"):
        (broken / f"ls_backend_mpi_{mpi}.so").touch()
    status, _, errors = paper("fig6", *TINY, "--transport", "mpi", env=dict(os.environ, LOCKSTEP_BACKEND_PATH=str(broken)))
    assert status == 1
    says(errors, "lockstep paper: --transport mpi: %s")
    says(errors, "no ls_backend_mpi_openmpi.so or ls_backend_mpi_mpich.so can be loaded; `lockstep info` says why")
    found = [file for file in built if shutil.which("mpirun." + file.stem.split("_")[-1])]
    if not found:
        raise Skip("there is no mpirun of an MPI with a plug-in (apt-get install libopenmpi-dev libmpich-dev mpich)")
    status, output, errors = paper("fig6", *TINY, "--format", "json", "--transport", "mpi",
                                   env=dict(os.environ, LOCKSTEP_BACKEND_PATH=str(plugins)))
    assert status == 0, errors
    rows = rows_of(json.loads(output)["tables"][0])
    titles = {f"MPI ({title})" for title in (sentence("Open MPI"), "MPICH")}
    assert len(rows) == 3 and all(row["medium"] in titles and row["step"] > 0 for row in rows), rows
    status, output, errors = paper("cs336", *TINY, "--format", "json", "--transport", "mpi",
                                   env=dict(os.environ, LOCKSTEP_BACKEND_PATH=str(plugins)))
    assert status == 0, errors
    calls, steps = map(rows_of, json.loads(output)["tables"][:2])
    assert [(row["world_size"], row["size_mb"]) for row in calls] == [(n, size) for n in (2, 4, 6) for size in (0.064, 1)], calls
    assert {row["backend"] for row in calls + steps} <= titles and all(row["time_ms"] > 0 for row in calls), calls


def written(folder, name, columns, rows, title="Step time, 2 ranks, shared memory, computed; means", **changed):
    """An earlier result as a version of Lockstep wrote it."""
    folder.mkdir(exist_ok=True)
    table = {"title": title, "columns": [{"key": key, "unit": ""} for key in columns.split(",")], "rows": rows}
    whole = {"experiment": name, "command": f"lockstep paper {name}", "version": "0.2.0", "machine": {"cpu": "Some CPU"},
             "tables": [table]} | changed
    (folder / f"{name}.json").write_text(json.dumps(whole))


def answers_of(*arguments):
    status, output, errors = paper("questions", "--format", "json", *arguments)
    assert status == 0, errors
    return [[*row.values()] for row in rows_of(json.loads(output)["tables"][0])]


@test
def the_papers_questions_are_answered_from_earlier_results():
    out = pathlib.Path(SCRATCH.name) / "answers"
    written(out, "fig2", "backend,algorithm,ranks,knee", [["shared memory", "chosen", 2, 500000],
                                                          ["TCP of one host", "tree_stages", 4, 100000]])
    written(out, "fig6", "medium,network,reduction,step", [
        [medium, network, kind, step] for network, medium, step in (
            ("A", "shared memory", 10.0), ("A", "TCP at 1gbit/s", 30.0), ("A", "MPI (MPICH)", 12.5), ("B", "TCP of one host", 7))
        for kind, step in (("after backward", step / 4), ("overlapped", step), ("local", step / 5))])
    written(out, "fig7", "network,bucket,steps", [
        [network, bucket, steps] for network, best, large in (("ResNet-18", "5", 30.0), ("GPT 6x384", "25", 20.5))
        for bucket, steps in (("0", [40.0, 39.0, 90.0]), (best, [19.0, 20.0, 500.0]), ("50", [large] * 3), ("auto", [19.5]))])
    written(out, "fig8", "network,bucket,steps", [
        [network, bucket, [step]] for network, best in (("ResNet-18", "5"), ("GPT 6x384", "25"))
        for bucket, step in ((best, 20.0), ("50", 20.5))])
    written(out, "fig10", "network,ranks,every,step", [["A", ranks, every, ranks * 10.0 / every] for ranks in (2, 4, 8)
                                                       for every in (1, 2, 4, 8)])
    answers = [row[2:] for row in answers_of("--out", out)]
    assert answers == [
        ["A", "shared memory: 10.00 ms a step; MPI (MPICH) takes 1.25 times as long", "fig6"],
        ["B", "TCP of one host: 7.00 ms a step; no other medium was measured", "fig6"],
        ["all-reduce of 2 ranks, shared memory", "calls from 2.00 MB on are within 10 % of the best", "fig2"],
        ["ResNet-18, shared memory", "5 MB: 20.00 ms a step; within 3 %: auto; 0 MB takes 2.00 times as long", "fig7"],
        ["GPT 6x384, shared memory", "25 MB: 20.00 ms a step; within 3 %: 50, auto; 0 MB takes 2.00 times as long", "fig7"],
        ["shared memory", "grows: 5 MB for 11.2 M parameters, 25 MB for 17.0 M", "fig7"],
        ["ResNet-18, shared memory", "5 MB: 20.00 ms a step; within 3 %: 50", "fig8"],
        ["GPT 6x384, shared memory", "25 MB: 20.00 ms a step; within 3 %: 50", "fig8"],
        ["shared memory", "no difference: 50 MB is within 3 % for 11.2 M parameters and 17.0 M", "fig8"],
        ["A", "2 ranks: over 1 Gbit/s a step takes 3.00 times as long as over memory", "fig6"],
        ["B", "shared memory and 1 Gbit/s were not both measured (as root)", "fig6"],
        ["A, shared memory, replayed", "8 ranks: 80.00 ms a step, 4.00 times that of 2; 0.50 times with every 8th step "
                                       "synchronised", "fig10"]], answers
    written(out, "fig9", "network,scaling,ranks,step", [["A", kind, ranks, math.sqrt(ranks)] for kind in ("strong", "weak")
                                                        for ranks in (1, 4, 8, 256)])
    assert answers_of("--out", out)[-1][2:] == [
        "A, shared memory, 64 samples a rank", "8 ranks: 2.83 times the step of 1; 256, modelled: 16.00 times", "fig9"]
    assert json.loads((out / "questions.json").read_text())["notes"][1] == "fig6.json: `lockstep paper fig6`, Lockstep 0.2.0, Some CPU."


@test
def a_folder_that_cannot_be_written_is_refused_before_anything_is_measured():
    file = pathlib.Path(SCRATCH.name) / "a-file"
    file.write_text("precious")
    status, output, errors = paper("fig2", "--out", file)
    assert status == 1 and output == "" and file.read_text() == "precious", (status, output)
    says(errors, "lockstep paper: \"%s\" cannot be written: %s")


@test
def questions_without_results_say_which_command_makes_them():
    empty = pathlib.Path(SCRATCH.name) / "empty"
    for arguments, folder in (((), "DIR"), (("--out", empty), empty)):
        assert [(row[3], row[4]) for row in answers_of(*arguments)] == [
            (f"not measured: run `lockstep paper {name} --out {folder}` first", name)
            for name in ("fig6", "fig2", "fig7", "fig6", "fig10")]


@test
def questions_are_answered_from_what_the_experiments_write():
    out = pathlib.Path(SCRATCH.name) / "real"
    for name in ("fig2", "fig6", "fig7", "fig10"):
        result_of(name, "--transport", "shm", "--out", out)
    answers = answers_of("--out", out)
    assert {row[4] for row in answers} == {"fig2", "fig6", "fig7", "fig10"}
    assert not any("not measured:" in row[3] for row in answers), answers


@test
def a_damaged_result_is_refused_by_its_name():
    out = pathlib.Path(SCRATCH.name) / "damaged"
    columns, row = "medium,network,reduction,step", ["shared memory", "A", "overlapped", 1.0]
    for said, change in (
            (sentence("it is no result of this experiment"), {"experiment": "fig7"}),
            (sentence("its command, version or CPU is missing or is no text"), {"command": "\x1b[2J"}),
            (sentence("it has no tables or too many"), {"tables": {}}),
            (sentence("it has no tables or too many"), {"tables": [{}] * 65}),
            (sentence("it has no rows of the expected columns"), {"tables": [{"title": "t", "columns": [], "rows": []}]}),
            (sentence("a table has no title, no rows or too many of them"), {"tables": [1]})):
        written(out, "fig6", columns, [row], **change)
        refused(out, said)
    for rows in ([row[:3]], [row[:3] + [0]], [row[:3] + ["1"]], [row[:3] + [1e300]], [[1] + row[1:]], [["\x1b"] + row[1:]],
                 ["text"], [["x" * 601] + row[1:]]):
        written(out, "fig6", columns, rows)
        refused(out, sentence('"%s" of a row is missing or of another type'))
    written(out, "fig6", columns, [row] * 1025)
    refused(out, sentence("a table has no title, no rows or too many of them"))
    for text in ("", "{", "[" * 100, '{"experiment": 1, "experiment": 2}', "[" + "1," * (1 << 21) + "1]"):
        (out / "fig6.json").write_text(text)
        refused(out, sentence("lockstep paper: %s; run `lockstep paper %s --out DIR` again, or remove the file"))
    (out / "fig6.json").unlink()
    for title in ("Step time", ", computed", "a, b\n, computed"):
        written(out, "fig7", "network,bucket,steps", [["A", "1", [1.0]]], title=title)
        status, _, errors = paper("questions", "--out", out)
        assert status == 1 and "fig7.json: " in errors, errors
    for steps in ([], 1.0, [1.0, None]):
        written(out, "fig7", "network,bucket,steps", [["A", "1", steps]])
        status, _, errors = paper("questions", "--out", out)
        assert status == 1 and 'fig7.json: "steps" of a row is missing or of another type' in errors, errors


def refused(out, said):
    status, _, errors = paper("questions", "--out", out)
    assert status == 1 and f"lockstep paper: {out}/fig6.json: " in errors, errors
    says(errors, said)


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.sections, self.plots, self.links, self.contents = [], 0, [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.sections += [given["id"]] if tag == "section" else []
        self.plots += tag == "svg"
        for link in (given[k] for k in ("src", "href") if k in given):
            (self.contents if link.startswith("#") else self.links).append(link)


@test
def all_experiments_make_a_report_that_needs_no_other_file():
    if not LONG:
        raise Skip("a minute; other tests run the experiments one by one: TEST_LONG=1")
    if not shutil.which("gnuplot"):
        raise Skip("there is no gnuplot (apt-get install gnuplot-nox)")
    out = pathlib.Path(SCRATCH.name) / "report"
    status, output, errors = paper("all", *TINY, "-n", "2", "--out", out)
    assert status == 0, errors
    says(errors, "lockstep paper: %d experiments are whole, %d incomplete, %d without a result: %s")
    assert f"{len(NAMES)} experiments are whole, 0 incomplete, 0 without" in errors, errors
    text = (out / "index.html").read_text()
    page = Page(text)
    assert page.sections == NAMES and page.plots >= 10 and page.links == [], vars(page)
    assert page.contents == [f"#{name}" for name in NAMES], page.contents
    for name in NAMES:
        result = json.loads((out / f"{name}.json").read_text())
        verdicts = [claim["verdict"] for claim in result["claims"]]
        counts = [verdicts.count(verdict) if verdicts else "-" for verdict in ("holds", "fails", "undecided")]
        assert f"{result['about']}</td>" + "".join(f'<td class="n">{count}</td>' for count in counts) in text, name
        assert f"by Lockstep {result['version']}; " in text and result["date"] in text, name
    for name in NAMES[:9]:
        assert xml.etree.ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert json.loads((out / f"{name}.json").read_text())["plots"][0]["files"] == [f"{name}.svg", f"{name}.png"]


def started(*arguments):
    """A measurement that a test ends in the middle, with all that it starts."""
    return subprocess.Popen([BUILD / "lockstep", *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            stdin=subprocess.DEVNULL, start_new_session=True)


def wait_for(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ended(process, number):
    """(status, output, errors) after the signal to the program alone."""
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


REPLAYED = ("--compute", "replay", "--speed", "4", "--transport", "shm")


def rows_file(process):
    """The file of rows of the measurement under way; None: there is none."""
    for child in pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        words = pathlib.Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
        if "--json" in words:
            return pathlib.Path(words[words.index("--json") + 1])
    return None


@test
def an_interrupted_measurement_keeps_the_turns_that_it_has():
    out = pathlib.Path(SCRATCH.name) / "interrupted"
    process = started("paper", "fig6", *REPLAYED, "--turns", "10", "--out", str(out))
    wait_for(lambda: rows_file(process))
    measured = rows_file(process)
    wait_for(measured.exists)
    status, output, errors = ended(process, signal.SIGINT)
    assert status == 1, errors
    says(errors, " interrupted after %lld s")
    says(errors, "lockstep paper: %s is incomplete (%s); measure it again: %s")
    assert f": lockstep paper fig6 --transport shm --compute replay --speed 4 --turns 10 --out {out}\n" in errors, errors
    result = json.loads((out / "fig6.json").read_text())
    assert result["incomplete"] == "interrupted" and "INCOMPLETE: interrupted" in output, output
    says(output, "INCOMPLETE: %s")
    rows = rows_of(result["tables"][0])
    assert [row["network"] for row in rows] == ["ResNet-18"] * 3, rows
    claim, = result["claims"]
    assert {len(row["turns"]) for row in rows} == {claim["turns"]} and 1 <= claim["turns"] < 10, claim
    if shutil.which("gnuplot"):
        assert (out / "fig6.svg").exists()
    assert not measured.parent.exists(), "a folder stays"


def interrupted_first_turn(name, *flags):
    """The rows of the first table, interrupted as soon as there are any."""
    out = pathlib.Path(SCRATCH.name) / f"interrupted-{name}"
    process = started("paper", name, *flags, "--turns", "1", "--out", str(out))
    wait_for(lambda: rows_file(process))
    wait_for(rows_file(process).exists)
    status, output, errors = ended(process, signal.SIGINT)
    assert status == 1 and "INCOMPLETE: interrupted" in output, errors
    return rows_of(json.loads((out / f"{name}.json").read_text())["tables"][0])


@test
def an_interrupted_first_turn_keeps_what_of_it_has_been_measured():
    hooks = [row["hook"] for row in interrupted_first_turn("compression", "--model", "digits", "--transport", "shm", "--steps", "200")]
    assert hooks[:1] == ["plain"] and len(hooks) < 8, hooks


@test
def an_interrupted_first_turn_of_which_nothing_is_kept_says_so():
    process = started("paper", "fig7", *REPLAYED, "--steps", "1000", "--turns", "2", "--out",
                      str(pathlib.Path(SCRATCH.name) / "nothing"))
    wait_for(lambda: rows_file(process))
    measured = rows_file(process)
    status, output, errors = ended(process, signal.SIGINT)
    assert status == 1 and output == "" and not measured.exists(), (status, output, errors)
    says(errors, "lockstep paper: it was in its first turn, of which nothing is kept")


@test
def what_is_killed_leaves_the_measurements_before_it():
    out = pathlib.Path(SCRATCH.name) / "killed"
    process = started("paper", "fig6", *REPLAYED, "--steps", "1", "--turns", "2", "--out", str(out))
    wait_for(lambda: (out / "fig6.json").exists() or process.poll() is not None)
    measured = rows_file(process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    if measured is not None:
        shutil.rmtree(measured.parent)
    result = json.loads((out / "fig6.json").read_text())
    says(result["incomplete"], "it ended in the middle")
    assert [row["network"] for row in rows_of(result["tables"][0])] == ["ResNet-18"] * 3, result


@test
def an_interrupted_report_says_what_is_done_and_what_is_missing():
    out = pathlib.Path(SCRATCH.name) / "halfway"
    process = started("paper", "all", "--model", "no-such-network", "--parameters", "20000", "--turns", "3", "--transport", "shm",
                      "--out", str(out))
    page = out / "index.html"

    def contents():
        lines = page.read_text().splitlines() if page.exists() else []
        return {name: line for name in NAMES for line in lines if line.startswith("<tr><td>") and f"{name}</" in line}
    wait_for(lambda: "no-such-network" in contents().get("fig10", ""))
    status, _, errors = ended(process, signal.SIGTERM)
    assert status == 1, errors
    lines = contents()
    assert Page(page.read_text()).contents[0] == "#fig2" and list(lines) == NAMES, lines
    assert "no result" not in lines["fig2"] and '"#fig2"' in lines["fig2"], lines["fig2"]
    for name in ("fig6", "fig7", "fig8", "cs336"):
        assert "no result" in lines[name], lines[name]
    assert '"no-such-network" is not a network' in lines["fig6"], lines["fig6"]
    says(lines["taxonomy"], "not measured yet")
    assert "0 incomplete" in errors or "1 incomplete" in errors, errors


@test
def every_page_says_when_and_beside_what_it_was_measured():
    status, output, _ = paper("arithmetic")
    assert status == 0
    says(output, "Made %s by Lockstep %s; nothing was measured")
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        status, output, errors = paper("fig6", *TINY, "--transport", "shm")
        assert status == 0, errors
        result = result_of("fig6", "--transport", "shm")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    says(output, "Measured %s in %.0f s by Lockstep %s; %s")
    says(output, "NOT QUIET: other programs kept %.1f of %.0f cores busy")
    conditions = result["conditions"]
    assert 0.3 < conditions["others_cores"] <= 1.1 * os.cpu_count() and conditions["seconds"] > 0, conditions
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", result["date"]), result["date"]
    status, output, errors = paper("fig6", *TINY, "--transport", "shm", "--out", SCRATCH.name)
    assert status == 0, errors
    script = (pathlib.Path(SCRATCH.name) / "fig6.gnuplot").read_text()
    assert "bars: lowest to highest turn of the whole step\\nMeasured " in script and "by Lockstep " in script, script
    if "NOT QUIET" not in output:
        says(output, "nothing else ran")


@test
def a_quick_experiment_measures_one_medium():
    result = result_of("fig6", "--quick")
    assert {row["medium"] for row in rows_of(result["tables"][0])} == {"shared memory"} and result["quick"]
    says(result["notes"][0], "Shared memory alone (--quick).")
    assert " fig6 --quick --model mlp-tiny" in result["command"], result["command"]
    status, output, errors = paper("fig12", "--model", "mlp-tiny", "--quick", "--format", "json")
    assert status == 0, errors
    result = json.loads(output)
    assert len(result["tables"]) == 1 and result["claims"][0]["turns"] == 3, result["claims"]
    status, output, errors = paper("cs336", "--quick", "--model", "mlp-tiny", "--sizes", "64K,1000M", "--format", "json")
    assert status == 0, errors
    assert {row["size_mb"] for row in rows_of(json.loads(output)["tables"][0])} == {0.064}


@test
def without_gnuplot_the_rest_is_written():
    out = pathlib.Path(SCRATCH.name) / "plain"
    status, _, errors = paper("fig6", *TINY, "--transport", "shm", "--out", out, env=environment_with("rm"))
    assert status == 0, errors
    says(errors, 'lockstep paper: "%s" could not be started: %s')
    says(errors, "lockstep paper: %s was not drawn; gnuplot (Debian: gnuplot-nox) draws it from %s")
    assert sorted(p.name for p in out.iterdir()) == ["fig6.gnuplot", "fig6.json"]


@test
def what_cannot_be_done_is_refused():
    for arguments, part in (
            (("fig66",), 'there is no experiment "fig66"; did you mean fig6?'), ((), "name one experiment"),
            (("all",), "all: say where to: --out DIR"),
            (("fig6", "--link", "1gbit", "--transport", "mpi"), "--link 1gbit is TCP; leave --transport mpi out")):
        status, _, errors = paper(*arguments)
        assert status == 2 and part in errors, errors
    taken = pathlib.Path(SCRATCH.name) / "taken"
    (taken / "fig6.json").mkdir(parents=True)
    status, _, errors = paper("fig6", *TINY, "--out", taken)
    says(errors, 'lockstep paper: "%s" cannot be written: %s')
    assert status == 1
    status, output, errors = paper("fig6", *TINY, "--out", "/dev/null/folder")
    assert status == 1 and output == "" and 'the folder "/dev/null/folder" cannot be made: Not a directory' in errors
    status, _, errors = paper("fig6", "--model", "no-such-network")
    assert status == 1 and '"no-such-network" is not a network' in errors, errors
    says(errors, " failed after %lld s")
    says(errors, "lockstep paper: %s has no result")


def namespaces(pid=r"\d+"):
    return set(re.findall(rf"^lockstep-paper-{pid}-\d+", command("ip", "netns", "list"), re.MULTILINE))


def left_namespaces():
    """Of processes that have ended; others may measure meanwhile."""
    ended = {name for name in namespaces() if not pathlib.Path(f"/proc/{name.split('-')[2]}").exists()}
    return ended & namespaces()


@test
def a_link_between_two_namespaces_is_made_and_removed():
    bare = pathlib.Path(SCRATCH.name) / "without-ip"
    bare.mkdir()
    for tool in ("sh", "rm", "tc", "nsenter"):
        (bare / tool).symlink_to(shutil.which(tool) or "/bin/true")
    status, _, errors = paper("fig6", *TINY, "--link", "1gbit", env=dict(os.environ, PATH=str(bare)))
    assert status == 1
    says(errors, "lockstep paper: --link %s needs root, ip, tc and nsenter (iproute2, util-linux): run it as root, or "
                 "leave --link out")
    if os.geteuid() != 0:
        raise Skip("only root can make network namespaces")
    (bare / "ip").symlink_to("/bin/false")
    status, _, errors = paper("fig6", *TINY, "--link", "1gbit", env=dict(os.environ, PATH=str(bare)))
    assert status == 1
    says(errors, "lockstep paper: --link: `%s` failed")
    if not all(map(shutil.which, ("ip", "tc", "nsenter"))):
        raise Skip("there is no ip, tc or nsenter (apt-get install iproute2)")
    if subprocess.run(["ip", "netns", "add", "lockstep-paper-try"], capture_output=True).returncode != 0:
        raise Skip("network namespaces are not permitted here")
    command("ip", "netns", "del", "lockstep-paper-try")
    before = left_namespaces()
    result = result_of("fig6", "--link", "1gbit")
    says(result["tables"][0]["rows"][0][0], "TCP at %s/s")
    assert result["link"] == "1gbit" and left_namespaces() == before
    if LONG:
        _, result = learnt("--link", "1gbit", "--steps", "130", "--turns", "1")
        for claim in result["claims"]:  # both have reached the loss
            says(claim["claim"], "on a slow link PowerSGD reaches a loss sooner than plain DDP (Vogels et al. 2019)")
        assert result["claims"] and left_namespaces() == before
    # Ended in the middle: nothing stays.
    process = subprocess.Popen([BUILD / "lockstep", "paper", "fig7", "--model", "mlp", "--link", "100mbit", "--steps",
                                "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not namespaces(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)  # also where the nodes have started
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1 and left_namespaces() == before, namespaces()


run()
