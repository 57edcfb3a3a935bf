"""Runs the jobs of a sweep in processes of this machine: one that dies costs its own job a second try, and no other."""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from tosaic.core.errors import TosaicError, first_line
from tosaic.core.quiet import import_quietly, silence
from tosaic.report.sweep import CRASHED, DONE, FAILED, Job, Result

#: How often a job is started whose process dies.
MOST_TRIES = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """A result, and the files of the program by their suffix."""

    result: Result
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])


def run_job(job: Job, memory: dict[str, Any], *, keep: bool) -> Outcome:
    """Run a job. `memory` keeps the model of the last one, so that the next does not have to quantize it again."""
    import torch

    from tosaic.api import model_file
    from tosaic.api.variants import Variants

    threads = torch.get_num_threads()
    # The cores are busy with other jobs. And the last bits of float sums depend on the number of threads.
    torch.set_num_threads(1)
    try:
        name = f"{job.content} {job.model} {job.calibration}"
        if name not in memory:
            memory.clear()
            loaded = model_file.load_with_samples(job.model)
            memory[name] = Variants(loaded.model, loaded.inputs, job.calibration or loaded.calibration)
        variants: Variants = memory[name]
        choice = variants.compile(job.options)
        if choice is None:
            return Outcome(Result(job, FAILED, variants.failed[job.options]))
        program = variants.programs[job.options]
        variants.forget(())
        if job.verify:
            choice = choice.with_verdict(program.verify().ok)
        return Outcome(
            Result(job, DONE, "", choice), {".pte": program.pte, ".tosaic": program.sidecar()} if keep else {}
        )
    except TosaicError as error:
        return Outcome(Result(job, FAILED, error.what))
    except Exception as error:
        # Any other error of one job must not end the sweep.
        return Outcome(Result(job, FAILED, first_line(error)))
    finally:
        torch.set_num_threads(threads)


def run_here(jobs: Sequence[Job], *, processes: int, keep: bool) -> Iterator[Outcome]:
    """Run jobs in processes of this machine, and yield each outcome as it comes."""
    waiting, tries = deque(jobs), Counter[str]()
    workers: dict[Any, _Worker] = {}
    try:
        while waiting or workers:
            while waiting and len(workers) < processes:
                worker = _Worker.start(keep)
                workers[worker.connection] = worker
                worker.give(waiting.popleft())
            for connection in wait(list(workers)):
                worker = workers[connection]
                job = worker.job
                assert job is not None
                try:
                    outcome: Outcome = worker.connection.recv()
                except (EOFError, OSError):
                    del workers[connection]
                    status = worker.stop()
                    tries[job.key] += 1
                    if tries[job.key] < MOST_TRIES:
                        waiting.appendleft(job)
                        continue
                    outcome = Outcome(Result(job, CRASHED, f"its process ended {MOST_TRIES} times ({status})"))
                else:
                    worker.job = None
                    if waiting:
                        worker.give(waiting.popleft())
                    else:
                        del workers[connection]
                        worker.stop()
                yield outcome
    finally:
        for worker in workers.values():
            worker.process.kill()
            worker.stop()


@dataclass(slots=True)
class _Worker:
    """A process that runs one job after the other."""

    process: SpawnProcess
    #: of a type that depends on the platform
    connection: Any
    job: Job | None = None

    @staticmethod
    def start(keep: bool) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = Pipe()
        process = context.Process(target=_serve, args=(theirs, keep), daemon=True)
        process.start()
        # With the only other end in the process, its death is the end of the stream.
        theirs.close()
        return _Worker(process, ours)

    def give(self, job: Job) -> None:
        self.job = job
        # If it is dead, the next read will find that too.
        with suppress(OSError):
            self.connection.send(job)

    def stop(self) -> str:
        """End the process and say how it ended."""
        self.connection.close()
        self.process.join()
        code = self.process.exitcode or 0
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def _serve(connection: Any, keep: bool) -> None:
    """Run the jobs that come over a connection until it is closed."""
    # Its packages print messages for their developers, some of them while they are imported.
    import_quietly("torchao.quantization")
    silence()
    memory: dict[str, Any] = {}
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        connection.send(run_job(job, memory, keep=keep))
