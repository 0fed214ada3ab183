"""HPC jobs: a program reports its I/O phases, so that prefetches for analytics jobs do not disturb them."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Optional

from ._core import Client
from ._core import HpcJob as _Job
from .process import default_client


class Phase:
    """An I/O phase under way."""

    def __init__(self, job: _Job):
        self._job = job

    def progress(self, bytes: int) -> None:
        """The phase has moved `bytes` since it began. OSError: the agent is gone."""
        self._job.phase_progress(bytes)


class HpcJob:
    """An HPC job; one process speaks for it, for instance MPI rank 0. Programs of one user with the same `name` are one job.

    `qos`: how much longer than alone a phase may take, 0.05 for 5 %. `processes`: its weight beside other jobs. `share`: its
    phases wait for those of other jobs that share, as `cluster.access` says. `io`, `compute` (seconds) and `phases` describe its phases, if they are known.
    OSError: no agent, or the agent refuses.

        with forebay.HpcJob("simulation", qos=0.05, processes=comm.size) as job:
            with job.phase(bytes=total) as phase:
                ...                               # collective writes; now and then:
                phase.progress(written)
    """

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        qos: float = 0.05,
        processes: int = 1,
        share: bool = False,
        io: float = 0.0,
        compute: float = 0.0,
        phases: int = 0,
        client: Optional[Client] = None,
    ):
        name = name or os.environ.get("FOREBAY_JOB_NAME") or "python"
        self._job = _Job(
            client or default_client(),
            name,
            qos=qos,
            processes=processes,
            share=share,
            io_s=io,
            compute_s=compute,
            phases=phases,
        )

    def writes_to(self, files: Iterable[Union[AnyPath, Tuple[AnyPath, int]]]) -> None:
        """The next phases write to `files`, which exist: paths, or pairs of a path and the bytes that are written to it.
        A job that shares then waits only for jobs that write to the same servers; without files, or if the PFS does not
        report servers, for all."""
        self._job.writes_to([file if isinstance(file, tuple) else os.fspath(file) for file in files])

    @contextlib.contextmanager
    def phase(self, bytes: int = 0, deadline: float = 0.0) -> Iterator[Phase]:
        """An I/O phase of `bytes` (0: unknown), to be over after `deadline` seconds (0: from `qos` and earlier phases)."""
        self._job.phase_begin(bytes, deadline)
        try:
            yield Phase(self._job)
        finally:
            self._job.phase_end()

    def close(self) -> None:
        """Ends the job, and its phase."""
        self._job.close()

    def __enter__(self) -> HpcJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
