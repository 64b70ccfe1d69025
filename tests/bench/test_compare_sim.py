# SPDX-License-Identifier: Apache-2.0
"""`make compare-sim`: what calibrates the model, what is judged, and rows. Nothing here decides on how long something took."""

import pathlib
import re
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "harness")]
from tap import BUILD, SOURCE, command, run, test

sys.path[:0] = [str(SOURCE / "bench")]
sys.dont_write_bytecode = True
import compare_sim

KERNELS = """some processor
qkv forward                             100.0 us     78.6 GF/s
qkv dX                                  200.0 us     39.3 GF/s
ff2 dW                                  400.0 us     26.2 GF/s
attention forward                        50.0 us     10.0 GF/s
attention backward                      130.0 us     10.0 GF/s
gelu erf forward                        800.0 us
gelu erf backward                      1200.0 us
add [rows,dim]                          300.0 us
add [8] (call overhead)                   0.1 us
layer norm                              200.0 us
layer norm backward                     300.0 us
AdamW [rows*4dim]                      2800.0 us
"""


@test
def the_device_is_what_kernels_of_another_network_took():
    """Of the slowest of copies that ran at the same time. An element of [rows,dim] takes 100 us each time it is read or written."""
    slower = re.sub(r"(\d+\.\d) us", lambda found: f"{3 * float(found[1]):.1f} us", KERNELS)
    lines = compare_sim.device_text([(1024, 64, compare_sim.slowest([KERNELS]))], 128).splitlines()
    assert lines[:3] == ["1007.640gflop", "5.243gbyte", "attention 4096 64 32 60.000us"], lines
    assert lines[3:] == ["matmul 1024 384 128 100.000us", "matmul 1024 128 384 200.000us", "matmul 128 512 1024 400.000us"], lines
    fast = compare_sim.slowest([KERNELS])
    lines = compare_sim.device_text([(1024, 64, compare_sim.slowest([KERNELS, slower])), (256, 64, fast)], 128).splitlines()
    assert lines[1:5] == ["1.748gbyte", "attention 4096 64 32 180.000us", "attention 1024 64 32 60.000us",
                          "matmul 1024 384 128 300.000us"], lines
    assert lines[7:] == ["matmul 256 384 128 100.000us", "matmul 256 128 384 200.000us", "matmul 128 512 256 400.000us"], lines
    again = compare_sim.device_text([(1024, 64, fast), (1024, 16, fast)], 128).splitlines()
    assert again[2:4] == ["attention 4096 64 32 60.000us", "attention 4096 16 32 60.000us"], again
    assert len(again) == 7, again
    assert compare_sim.MODEL["dim"] // 2 == 128, "products of the network that is judged calibrate nothing"


@test
def a_meeting_costs_what_computations_take_longer():
    said = "".join(f"[0] ROUND 600.00 {meets:.2f}\n" for meets in (680.0, 700.0, 1000.0))
    assert round(compare_sim.meeting_seconds(said, 2.0) * 1e6, 6) == 50.0, compare_sim.meeting_seconds(said, 2.0)
    assert compare_sim.meeting_seconds("[0] ROUND 600.00 590.00\n", 2.0) == 0.0, "noise costs nothing"


@test
def a_link_is_two_all_reduces():
    """2 α + S β, with α = 10 us and β = 1 ns a byte."""
    rows = [{"bytes": size, "time_ms": 0.02 + size * 1e-6} for size in (4000, 8000000)]
    assert compare_sim.cluster_text(*rows) == "1.0000gbyte@10.000us", compare_sim.cluster_text(*rows)
    assert compare_sim.cluster_of(8, "1gbyte", False)[0] == "8:1gbyte"
    assert compare_sim.cluster_of(2, "1gbyte", True)[0] == "1:1000gbyte,2:1gbyte"


@test
def a_core_moves_what_a_computation_loses():
    said = "".join(f"ROUND 70.0 90.0 {both} 0.1\n" for both in (94.0, 98.388608, 200.0))
    assert compare_sim.moved_text(said) == "/1.0000gbyte", compare_sim.moved_text(said)
    assert compare_sim.moved_text("ROUND 70.0 90.0 89.0 0.1\n") == "", "noise is no core's work"


@test
def what_is_judged_is_what_is_predicted():
    options = compare_sim.job_options("pp", 4)
    assert options[-4:] == ["--mesh", "pp=4", "--micro-batches", 16], options
    assert compare_sim.seconds_of('{"step": 1, "seconds": 0.5}') == 0.5
    said = command(BUILD / "lockstep", "sim", "--model", "gpt", *options, "--vocab", 256, "--cluster", "4:1gbyte@1us/2gbyte", "--cores", 2)
    assert "pp=4" in said and "16 micro-batches of 8" in said, said


@test
def an_error_is_of_the_measured_step():
    row = compare_sim.row_of("dp-2/shm", [(11.0, 10.0), (9.0, 10.0), (12.0, 10.0)])
    assert (row["predicted_ms"], row["step_ms"], row["error"], row["spread"]) == (11.0, 10.0, 0.1, [-0.1, 0.2]), row
    assert compare_sim.line_of(row).count("|") == compare_sim.HEAD.splitlines()[0].count("|")
    assert compare_sim.missed(row) is None and "missed" in compare_sim.missed(dict(row, error=-0.11))


run()
