"""Runs the jobs of a sweep on a Dask cluster. Its scheduler and workers run code that is sent to them: use your own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from tosaic.api.sweep_worker import Outcome, run_job
from tosaic.core.errors import ToolFailed
from tosaic.report.sweep import CRASHED, Job, Result

#: Seconds to wait for the scheduler.
_TIMEOUT = 30


def run_on_cluster(jobs: Sequence[Job], address: str, *, keep: bool) -> Iterator[Outcome]:
    """Run jobs on the workers of a scheduler, and yield each outcome as it comes.

    The cluster starts a job again whose worker died. A future is released as soon as its outcome is here: what a worker
    has finished is not computed again if that worker dies later.
    """
    dask = _import_dask()
    try:
        client = dask.Client(address, timeout=_TIMEOUT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ToolFailed(
            f"there is no Dask scheduler at `{address}`", why=str(error), fix="start one with `dask scheduler`"
        ) from None
    with client:
        by_key = {f"tosaic-{job.key}": job for job in jobs}
        futures = [client.submit(run_on_worker, job, keep, key=key, pure=False) for key, job in by_key.items()]
        with client.as_current():
            finished = dask.as_completed(futures, with_results=True, raise_errors=False)
        del futures
        for future, outcome in finished:
            job, status = by_key[future.key], future.status
            future.release()
            if status == "finished" and isinstance(outcome, Outcome):
                yield outcome
            else:
                yield Outcome(Result(job, CRASHED, f"the cluster gave up on it ({status})"))


def run_on_worker(job: Job, keep: bool) -> Outcome:
    """Run a job in a worker of the cluster, which keeps the model for the next job."""
    worker = _import_dask().get_worker()
    memory: dict[str, Any] = worker.__dict__.setdefault("tosaic_memory", {})
    return run_job(job, memory, keep=keep)


def _import_dask() -> Any:
    """Import Dask, which is an extra and has no types."""
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise ToolFailed("Dask is not installed", fix="pip install 'tosaic[cluster]'") from None
