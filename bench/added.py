# SPDX-License-Identifier: Apache-2.0
"""Shared by compare_experts.py and compare_tensor.py, and in part by compare_zero.py: the time that dividing a network between
two ranks adds to a step. Each framework takes steps of the divided network and steps that each rank takes alone, in the same
turn; added is the first time minus a share of the second, and at least 0.5 % of that share: less is noise."""

import dataclasses
import statistics

import turns
from link import LINKS, link_of
from pages import range_text

AIM = 2.0  # of the ratio of added times
NOISE = 0.005  # of the share: the least added time that counts


def added(alone, divided, share=1.0):
    return [max(step - share * whole, NOISE * share * whole)
            for whole, step in zip(alone["slowest_ms"], divided["slowest_ms"])]


def ratios(theirs, ours):
    return [their / our for their, our in zip(theirs, ours)]


def times_of(who, alone, divided, share=1.0):
    """Medians of one framework, as a row has them."""
    return {f"{who}_{what}_ms": round(statistics.median(times), 3) for what, times in (
        ("step", divided["slowest_ms"]), ("alone", alone["slowest_ms"]), ("added", added(alone, divided, share)))}


def times_text(row, who):
    return f"{row[who + '_step_ms']:.4g} | {row[who + '_alone_ms']:.4g} | {row[who + '_added_ms']:.3g}"


def missed(row):
    if row["ratio"] < AIM:
        yield f"missed: PyTorch adds {row['ratio']:.2f} of the time that Lockstep adds, aim {AIM}"


@dataclasses.dataclass
class Comparison:
    form: str  # of bench/training/parallel_ours.c
    script: str  # PyTorch's, in bench/training
    peer: str
    alone: str  # the head's sentences on the two times
    size: str  # "batch {}" in a row's name
    batch: dict
    rows: list
    share: float = 1.0
    warm_up: int = 1
    steps: int = 2  # of a turn; of tiny models 20

    def measure(self, options, model, name):
        """The rows (alone, divided) of Lockstep, those of PyTorch."""
        arguments = [model, self.batch[model], 1, f"alone,{self.form}", self.warm_up,
                     20 if model.endswith("-tiny") else self.steps, options.turns]

        def torch(options, link, arguments, folder):
            return turns.torch_job(options, link, folder, self.script, lambda gate, path: [*arguments, gate, path])

        with link_of(name) as link:
            ours, theirs = turns.take_turns((turns.parallel_job, torch), options, link, arguments)
        turns.check_equal(ours, theirs)
        return ours, theirs

    def row_of(self, model, link, ours, theirs):
        return {"name": f"{model}, {self.size.format(self.batch[model])}, {LINKS[link][0]}", "peer": self.peer, "model": model,
                "link": link, "batch": self.batch[model], **times_of("ours", *ours, self.share),
                **times_of("peer", *theirs, self.share),
                **turns.summary(ratios(added(*theirs, self.share), added(*ours, self.share))),
                "step_ratio": round(statistics.median(ratios(theirs[1]["slowest_ms"], ours[1]["slowest_ms"])), 3)}

    def head(self):
        return (f"{self.alone} Ratio: PyTorch's added time by Lockstep's.\n"
                "| a step | Lockstep ms | alone | added | PyTorch ms | alone | added | ratio | range | turns | ratio of steps |\n"
                "|---|---|---|---|---|---|---|---|---|---|---|")

    @staticmethod
    def line_of(row):
        return (f"| {row['name']} | {times_text(row, 'ours')} | {times_text(row, 'peer')} | {row['ratio']:.2f} | "
                f"{range_text(row)} | {row['turns']} | {row['step_ratio']:.2f} |")

    def run(self, doc):
        turns.compare(turns.parse(doc, self.batch, self.rows), f"compare-{self.form}.json", self.head(),
                      lambda options, model, link: [self.row_of(model, link, *self.measure(options, model, link))],
                      self.line_of, missed)
