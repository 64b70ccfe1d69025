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

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-paper-test-")
TINY = ("--model", "mlp-tiny", "--steps", "3", "--turns", "3", "--sizes", "64K,1M", "--parameters", "250000")
NAMES = ["fig2", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "variance", "cs336", "questions", "backends", "arithmetic",
         "taxonomy"]
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
    assert claim["holds"] == (claim["ratio"] < claim["factor"] == 1.0)
    assert result["machine"]["cores"] == os.cpu_count() and result["command"].endswith(
        "fig6 --transport tcp --model mlp-tiny --parameters 250000 --steps 3 --turns 3"), result["command"]


@test
def replayed_tables_say_so_and_name_the_timeline():
    status, output, errors = paper("fig6", "--model", "resnet18-cifar", "--compute", "replay", "--speed", "20", "--steps",
                                   "2", "--turns", "2", "--format", "json")
    assert status == 0, errors
    result = json.loads(output)
    says(result["tables"][0]["title"], "Parts of a step, buckets of 25 MB, 2 ranks, %s; means")
    assert ", replayed; " in result["tables"][0]["title"], result["tables"]
    note = result["notes"][0]
    says(note, "%s: replayed (timeline %.100s, batch %.0f, recorded on %.250s%s).")
    says(note, "; %g times as fast")
    assert "timeline resnet18-cifar, batch 8, recorded on AMD EPYC, 2 cores, " in note and result["command"].endswith(
        "fig6 --model resnet18-cifar --compute replay --speed 20 --steps 2 --turns 2"), result
    computed = result_of("fig6")
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
        (kind, 2**k, "replayed" if k <= 3 else "modelled") for kind in ("weak", "strong") for k in range(9)]
    weak, strong = rows[:9], rows[9:]
    assert math.isclose(strong[0]["step"], 4 * weak[0]["step"], rel_tol=1e-9)  # 256 samples and 64 on one rank
    for row in rows:
        one = rows[0] if row["scaling"] == "weak" else rows[9]
        times = row["ranks"] if row["scaling"] == "weak" else 1
        assert math.isclose(row["speedup"], times * one["step"] / row["step"], rel_tol=1e-9), row
        # never shorter than what a rank computes
        assert row["step"] >= (1 if row["scaling"] == "weak" else 4 / row["ranks"]) * weak[0]["step"] * (1 - 1e-9), row
        if row["step is"] == "modelled":
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
    first, second = output.split("\n\n")
    table = list(csv.DictReader(io.StringIO(first)))
    assert [(row["world_size"], row["size_mb"]) for row in table] == [
        (str(n), size) for n in (2, 4, 6) for size in ("0.064", "1")], table
    assert [row[0] for row in csv.reader(io.StringIO(second))][:len(NOTEBOOK)] == NOTEBOOK


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
    size, tree = result["claims"]
    curve, = [c for (medium, *_), c in curves.items() if medium == "shared memory"]
    at_knee, = [row for row in curve if row["per call"] == knees[0]["knee"]]
    large = at_knee if at_knee is not curve[0] else curve[-1]
    ratio = statistics.median(a / b for a, b in zip(large["turns"], curve[0]["turns"]))
    assert math.isclose(size["ratio"], ratio, rel_tol=1e-9) and size["relation"] == "<" and tree["relation"] == ">"


@test
def skipping_synchronisation_trains_with_the_same_bits_in_every_run():
    if os.environ.get("TEST_LONG") != "1":
        raise Skip("a minute; the report of all experiments has a short one: TEST_LONG=1")
    result = result_of("fig11", "--steps", "82", "--turns", "2")
    rows = rows_of(result["tables"][0])
    assert [row["every"] for row in rows] == ["1", "2", "4", "8"] * 2
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
    # The paper's two pairs, trained once more: a point of a curve is the mean of a fortieth of the first seed's losses.
    for k, (batch, rate) in enumerate((("8", "0.02"), ("256", "0.06"))):
        path = pathlib.Path(SCRATCH.name) / "pair.json"
        command(BUILD / "lockstep", "bench", "digits", "--batch", batch, "--lr", rate, "--iterations", "82", "--json", path)
        for row, trained in zip(rows[4 * k:], json.loads(path.read_text())):
            curve = [point for point in rows_of(result["tables"][1 + k]) if point["every"] == row["every"]]
            assert [point["iteration"] for point in curve] == [2 * i + 1.5 for i in range(41)], curve
            for point, pair in zip(curve, zip(trained["losses"][::2], trained["losses"][1::2]), strict=True):
                assert math.isclose(point["loss"], statistics.mean(pair), rel_tol=1e-9), (point, pair)
            assert row["losses at the end"][0] == trained["final"] and f"batch {batch}, learning rate {rate}" == row["pair"]


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
    assert {"native", "loop"} <= set(rows[0])
    shown = subprocess.run([BUILD / "lockstep", "info", "--backends"], text=True, capture_output=True, env=environment).stdout
    lines = [line for line in shown.split("\n\n", 1)[1].splitlines()[1:] if line]
    assert [[*row.values()] for row in rows] == [[line[:22].rstrip(), *line[22:].split()] for line in lines], lines
    assert any("-" in row.values() for row in rows) and all(row["native"] == "yes" for row in rows if row["function"] != "streams")


@test
def all_media_are_measured_or_said_to_be_skipped():
    status, output, errors = paper("fig6", *TINY, "--format", "json", env=environment_with("sh", "rm", "grep"))
    assert status == 0, errors
    result = json.loads(output)
    assert {row["medium"] for table in result["tables"] for row in rows_of(table)} == {"shared memory"}
    says("\n".join(result["notes"]), "TCP at 1 Gbit/s: skipped: network namespaces cannot be made here; it needs root, ip, "
                                     "tc and nsenter.")
    says("\n".join(result["notes"]), "MPI: skipped: %s.")
    says("\n".join(result["notes"]), "NCCL: skipped: this version has no CUDA backend.")


@test
def a_job_of_mpirun_is_measured_where_there_is_one():
    plugins = BUILD / "src/comm/mpi"
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
    calls, steps = map(rows_of, json.loads(output)["tables"])
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
    if not shutil.which("gnuplot"):
        raise Skip("there is no gnuplot (apt-get install gnuplot-nox)")
    out = pathlib.Path(SCRATCH.name) / "report"
    status, output, errors = paper("all", *TINY, "--out", out)
    assert status == 0, errors
    says(errors, "lockstep paper: %d experiments, %d without a result: %s")
    text = (out / "index.html").read_text()
    page = Page(text)
    assert page.sections == NAMES and page.plots >= 10 and page.links == [], vars(page)
    assert page.contents == [f"#{name}" for name in NAMES], page.contents
    for name in NAMES:
        result = json.loads((out / f"{name}.json").read_text())
        hold = [claim["holds"] for claim in result["claims"]]
        assert f"{result['about']}</td><td>{f'{sum(hold)} of {len(hold)}' if hold else 'none'}</td>" in text, name
    for name in NAMES[:9]:
        assert xml.etree.ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert json.loads((out / f"{name}.json").read_text())["plots"][0]["files"] == [f"{name}.svg", f"{name}.png"]


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


def namespaces():
    return {line.split()[0] for line in command("ip", "netns", "list").splitlines() if "lockstep-paper" in line}


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
    before = namespaces()
    result = result_of("fig6", "--link", "1gbit")
    says(result["tables"][0]["rows"][0][0], "TCP at %s/s")
    assert result["link"] == "1gbit" and namespaces() == before
    # Ended in the middle: nothing stays.
    process = subprocess.Popen([BUILD / "lockstep", "paper", "fig7", "--model", "mlp", "--link", "100mbit", "--steps",
                                "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while namespaces() == before and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)  # also where the nodes have started
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1 and namespaces() == before, namespaces()


run()
