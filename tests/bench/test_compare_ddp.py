# SPDX-License-Identifier: Apache-2.0
"""`make compare-ddp` without PyTorch: turns, links, rows. Nothing here decides on how long something took."""

import json
import pathlib
import select
import subprocess
import sys
import tempfile
import time
import types

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from sentences import says
from tap import BUILD, SOURCE, Skip, command, run, test

sys.path[:0] = [str(SOURCE / "bench")]
sys.dont_write_bytecode = True
import compare_ddp
import pages
from link import Refused, link_of, stream_ms

SCRATCH = tempfile.TemporaryDirectory(prefix="lockstep-compare-ddp-")


@test
def a_bench_of_ddp_takes_turns_with_others():
    """Rank 0 and 1 wait for a byte each before every turn."""
    options = types.SimpleNamespace(build=BUILD, modes=["flat", "1"], turns=2, plane="plain")
    with tempfile.TemporaryDirectory(dir=SCRATCH.name) as folder, link_of("tcp") as link:
        ours = compare_ddp.lockstep(options, link, "mlp-tiny", 4, pathlib.Path(folder))
        try:
            ours.wait()
            time.sleep(0.2)
            assert not select.select([ours.pipes["done"]], [], [], 0.2)[0]  # no turn without a byte
            ours.turn()
            ours.turn()
            found = compare_ddp.by_mode(ours.rows())
        finally:
            ours.end()
    assert list(found) == ["flat", "1", "local"] and all(len(row["slowest_ms"]) == 2 for row in found.values()), found


@test
def a_bench_of_ddp_without_its_pipes_says_which():
    done = subprocess.run([BUILD / "lockstep", "bench", "ddp", "--model", "mlp-tiny", "--mode", "flat", "--gate", "/none"],
                          text=True, capture_output=True)
    assert done.returncode != 0
    says(done.stderr, "--gate: no turn from %s: %s")
    assert "/none/done: No such file or directory" in done.stderr, done.stderr


def ddp_row(mode, ms, size="-"):
    return {"mode": mode, "buckets": size, "slowest_ms": ms, "exposed": {"mean_ms": 1.0}, "wire": {"mean_ms": 2.0}}


@test
def added_times_are_compared_within_each_turn():
    ours = [ddp_row("flat", [110.0, 121.0, 134.0]), ddp_row("overlap", [100.0, 111.0, 121.0], "auto"),
            ddp_row("local", [100.0, 110.0, 120.0])]
    theirs = [ddp_row("flat", [220.0, 222.0, 228.0]), ddp_row("default", [210.0, 210.0, 210.0]),
              ddp_row("local", [200.0, 200.0, 200.0])]
    flat, overlap = compare_ddp.rows_of("gpt", "1gbit", "plain", 8, ours, theirs, 9.0)
    assert (flat["ours_added_ms"], flat["peer_added_ms"], flat["ratio"]) == (11.0, 22.0, 2.0), flat
    assert (flat["spread"], flat["turns"], flat["spread_is"]) == ([2.0, 2.0], 3, "lowest to highest"), flat
    assert (flat["ours_of_local"], flat["peer_of_local"], flat["floor_ms"]) == (1.1, 1.11, 9.0), flat
    assert overlap["ours_added_ms"] == 1.0 and overlap["ratio"] == 10.0, overlap  # 0.5, 1, 1: at least 0.5 % of the step
    assert overlap["spread"] == [10.0, 20.0] and overlap["ours_of_local"] == 1.0083, overlap
    assert [line.count("|") for line in (compare_ddp.line_of(flat), compare_ddp.HEAD.splitlines()[-2])] == [12, 12]
    assert list(compare_ddp.missed(flat)) == ["adds 1.22 of the floor, aim 1.1"]
    assert list(compare_ddp.missed(overlap)) == []
    assert list(compare_ddp.missed({**overlap, "spread": [0.5, 0.9], "ours_of_local": 1.06})) == [
        "adds more time than PyTorch", "takes 1.060 of the local step, aim 1.05"]


@test
def a_job_that_is_not_ready_ends_with_the_measurement():
    ended, real = [], (compare_ddp.lockstep, compare_ddp.torch)

    class Job(types.SimpleNamespace):
        def wait(self):
            if not self.ready:
                raise Refused("it does not come")
            return self

        def end(self):
            ended.append(self.name)

    try:
        compare_ddp.lockstep = lambda *_: Job(name="Lockstep", ready=True)
        compare_ddp.torch = lambda *_: Job(name="PyTorch", ready=False)
        compare_ddp.measure(types.SimpleNamespace(turns=1), "mlp-tiny", "tcp", 4)
    except Refused as refused:
        assert "it does not come" in str(refused) and ended == ["Lockstep", "PyTorch"], (str(refused), ended)
    else:
        raise AssertionError("measured")
    finally:
        compare_ddp.lockstep, compare_ddp.torch = real


@test
def other_networks_are_not_compared():
    ours = [{"mode": "flat", "bucket_bytes": [400, 4000]}, {"mode": "local", "bucket_bytes": []}]
    compare_ddp.check_size(ours, [{"parameters": 1100}])
    try:
        compare_ddp.check_size(ours, [{"parameters": 1102}])
    except Refused as refused:
        assert "PyTorch has 1102 parameters, Lockstep [1100]" in str(refused)
    else:
        raise AssertionError("compared")


@test
def buckets_that_are_shown_hold_all_gradients():
    """In ready order, after the first backward, there are 11 of at most 5 MB; in the order of registration 10."""
    path = pathlib.Path(SCRATCH.name) / "buckets.json"
    command(BUILD / "lockstep", "bench", "ddp", "--model", "resnet18-cifar", "--batch", "1", "--mode", "flat,overlap",
            "--buckets", "5", "--steps", "1", "--rounds", "1", "--warmup", "2", "--json", path)
    assert [sum(row["bucket_bytes"]) for row in json.loads(path.read_text())] == [4 * 11173984] * 2


@test
def rows_that_are_kept_stay_in_the_file():
    path = pathlib.Path(SCRATCH.name) / "rows.json"
    pages.write_rows(path, [{"name": "a", "ratio": 1}, {"name": "b", "ratio": 2}], False)
    pages.write_rows(path, [{"name": "b", "ratio": 3}], True)
    assert json.loads(path.read_text()) == [{"name": "a", "ratio": 1}, {"name": "b", "ratio": 3}]
    pages.write_rows(path, [{"name": "c", "ratio": 4}], False)
    assert [row["name"] for row in json.loads(path.read_text())] == ["c"]


@test
def a_stream_of_tcp_is_timed_on_loopback_and_on_a_wire_of_its_rate():
    with link_of("tcp") as link:
        assert stream_ms(link, 10**6) > 0
    try:
        with link_of("1gbit") as link:
            ms = stream_ms(link, 5 * 10**6)
    except Refused as refused:
        raise Skip(str(refused))
    assert ms > 30, ms  # 40 ms at 1 Gbit/s, 2 of which the token bucket gives away


run()
