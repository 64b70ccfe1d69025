# SPDX-License-Identifier: Apache-2.0
"""Contenders as processes: started, asked one command after the other, and ended."""

import os
import select
import subprocess
import tempfile
import time

ANSWER_S = 180  # for one command; a contender that takes longer is given up


class Failed(Exception):
    """A contender that answered with an error: it is there for the next command."""


class Gone(Failed):
    """A contender that ended, or gives no answer."""


class Session:
    """One contender with all its ranks, asleep between two commands."""

    def __init__(self, command, ranks, environment, scratch, answer_s=ANSWER_S):
        self.answer_s = answer_s
        self.folder = tempfile.mkdtemp(dir=scratch)
        names = [f"in.{rank}" for rank in range(ranks)] + ["out"]
        for name in names:
            os.mkfifo(f"{self.folder}/{name}")
        # both ends at once: opening does not block, and a rank that ends closes nothing
        self.pipes = [os.open(f"{self.folder}/{name}", os.O_RDWR) for name in names]
        self.log = open(f"{self.folder}/log", "w+")
        self.process = subprocess.Popen(
            [word.replace("FOLDER", self.folder) for word in command], stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=self.log, env={**os.environ, **environment})

    def last_words(self):
        self.log.flush()
        text = open(f"{self.folder}/log").read().strip()
        return text.splitlines()[-1] if text else "no output"

    def ask(self, line):
        """The samples of one command, in milliseconds, and how many calls each held."""
        for pipe in self.pipes[:-1]:
            os.write(pipe, (line + "\n").encode())
        answer, deadline = b"", time.monotonic() + self.answer_s
        while not answer.endswith(b"\n"):
            if select.select([self.pipes[-1]], [], [], 0.5)[0]:
                answer += os.read(self.pipes[-1], 65536)
            elif self.process.poll() is not None:
                raise Gone(f"ended with status {self.process.returncode}: {self.last_words()}")
            elif time.monotonic() > deadline:
                raise Gone(f"no answer to '{line}' for {self.answer_s} s")
        words = answer.decode().split()
        if words[0] != "ok":
            raise Failed(" ".join(words[1:]))
        return [float(word) for word in words[2:]], int(words[1])

    def end(self, patience_s=20):
        for pipe in self.pipes[:-1]:
            os.write(pipe, b"quit\n")
        try:
            self.process.wait(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # the launchers pass it on to their ranks
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pipe in self.pipes:
            os.close(pipe)
        self.log.close()


def launch_ms(command, environment):
    """From the start of the launcher to the moment the last rank had its first sum."""
    start = time.monotonic_ns()
    done = subprocess.run(command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=ANSWER_S)
    numbers = [line.split()[-1] for line in done.stdout.splitlines() if line.split()]
    if done.returncode != 0 or not numbers or not numbers[-1].isdigit():
        raise Failed((done.stderr.strip() or "no output").splitlines()[-1])
    return (int(numbers[-1]) - start) * 1e-6
