"""What belongs to the process: its client and its job."""

from __future__ import annotations

import os
import threading
from typing import Optional

from ._core import Client

_lock = threading.Lock()
_client: Optional[Client] = None


def default_client() -> Client:
    """The client of this process, configured from the environment at the first call. All calls return the same one."""
    global _client
    with _lock:
        if _client is None:
            _client = Client()
        return _client


def begin_job(client: Optional[Client] = None) -> str:
    """Begins a job: memory-only files live as long as this process, and its children see them.

    Sets FOREBAY_JOB in `os.environ`, where children started later find the job, and returns its token. Not needed under
    `forebay run`, which has begun one. OSError: no agent, or the agent refuses.
    """
    token = (client or default_client()).begin_job()
    os.environ["FOREBAY_JOB"] = token
    return token


# Another thread of the parent may hold the lock at the moment of a fork; in the child nobody would
# ever release it.
os.register_at_fork(after_in_child=lambda: globals().__setitem__("_lock", threading.Lock()))
