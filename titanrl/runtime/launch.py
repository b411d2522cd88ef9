"""The launch of ranks on this machine, and torch.distributed's variables from those of torchrun and Slurm."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from titanrl.runtime import status
from titanrl.runtime.stop import STOPPED, write_line
from titanrl.runtime.supervise import LOST, Ended, continue_with, ended_silently, forwarding

__all__ = ["LAUNCHER", "STATUS", "first_host", "launched", "run_ranks", "slurm_environment"]

LAUNCHER, STATUS = "TITANRL_LAUNCHER", "TITANRL_STATUS"
"""Variables of a rank that ``run_ranks`` started: the launcher's process id, the descriptor of its status."""
POLL_SECONDS = 0.02
GRACE_SECONDS = 20.0
"""Time for the other ranks to end after one has ended with an error."""
LOST_SECONDS = 3.0
"""The same after one has reported that another is lost: all have read the report by then."""


def run_ranks(
    num_processes: int, arguments: Sequence[str], *, program: Sequence[str] = ("-m", "titanrl")
) -> int:
    """Run ``titanrl <arguments>`` as ranks on this machine and return the exit code of the command.

    Signals that stop a command are passed on to the ranks. When a rank ends with an error, the others get
    some seconds and are then killed. The end of a rank that reports none itself is reported.

    Args:
        num_processes: number of ranks.
        arguments: the command line of each rank.
        program: what Python runs.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        words, port = [*program, *arguments], server.getsockname()[1]
        ranks = [_Rank(rank, num_processes, words, port) for rank in range(num_processes)]
        try:
            with forwarding([each.process.pid for each in ranks]):
                store = _host_store(server)
                ended = _wait(ranks)
            del store  # Ranks use it until the last one has ended.
        finally:
            for each in ranks:
                each.process.kill()
                each.process.wait()
    return _report(ranks, ended, [*arguments, f"--nproc={num_processes}"])


class _Rank:
    """A rank and the status that it writes."""

    def __init__(self, rank: int, num_processes: int, words: Sequence[str], port: int) -> None:
        self.rank, self.status = rank, status.create()
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            # torch: the store is not rank 0's but the launcher's.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            LAUNCHER: str(os.getpid()),
            STATUS: str(self.status),
        }
        self.process = subprocess.Popen([sys.executable, *words], env=environment, pass_fds=[self.status])

    @property
    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""
        code = self.process.poll()
        return None if code is None else Ended(code, status.read(self.status))


def _host_store(server: socket.socket) -> object:
    """Return the store of the ranks, which this process hosts, so that it survives each of them."""
    from datetime import timedelta

    import torch

    host, port = server.getsockname()
    # It owns and closes the descriptor. Ranks that connect before it is ready wait in the socket's queue.
    # Not `from torch.distributed import`, which would load a lazy torch twice.
    return torch.distributed.TCPStore(  # type: ignore[attr-defined]
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=server.detach(),
    )


def _wait(ranks: Sequence[_Rank]) -> list[int]:
    """Wait until all ranks have ended well, or one has not; return them in the order of their ends."""
    order: list[int] = []
    limit = float("inf")
    while len(order) < len(ranks) and time.monotonic() < limit:
        time.sleep(POLL_SECONDS)
        for each in ranks:
            ended = each.ended
            if each.rank in order or ended is None:
                continue
            order.append(each.rank)
            if not ended.is_reported:
                return order  # Kill the others before they report that they lost their connection.
            if ended.code:
                seconds = LOST_SECONDS if ended.code == LOST else GRACE_SECONDS
                limit = min(limit, time.monotonic() + seconds)
    return order


def _report(ranks: Sequence[_Rank], order: Sequence[int], words: Sequence[str]) -> int:
    """Return the exit code of the command, that of the first rank that failed; print what it did not."""
    ends = [(each, each.ended) for each in (ranks[rank] for rank in order)]
    failed = [
        (each, ended) for each, ended in ends if ended is not None and (ended.code or not ended.is_reported)
    ]
    if not failed:
        return 0
    # A rank that ends in silence makes others fail, which may be seen before it.
    rank, ended = next((each for each in failed if not each[1].is_reported), failed[0])
    code = ended.code
    if not ended.is_reported:
        write_line(ended_silently(rank.rank, rank.process.pid, ended))
        code = LOST
    if code in (LOST, STOPPED) or code > 128:
        write_line(continue_with(words, status.read(ranks[0].status)))
    return code


def launched(environment: Mapping[str, str]) -> bool:
    """Return whether a launcher started this process as a rank."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def slurm_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torch.distributed needs if srun started this process; else an empty dict.

    Only srun sets ``SLURM_STEP_NUM_TASKS``. The batch script itself also has SLURM_PROCID but is not a rank.

    Args:
        environment: the variables of this process; those that torch.distributed already has are left out.
    """
    if launched(environment) or "SLURM_STEP_NUM_TASKS" not in environment:
        return {}
    if environment["SLURM_STEP_NUM_TASKS"] == "1":
        return {}
    job = int(environment["SLURM_JOB_ID"])
    variables = {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": first_host(environment["SLURM_STEP_NODELIST"]),
        # Steps of different jobs may share a node, so the port depends on the job.
        "MASTER_PORT": str(20000 + job % 20000),
    }
    return {key: value for key, value in variables.items() if key not in environment}


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list: ``gpu[003-007,9]`` gives ``gpu003``.

    Raises:
        ValueError: the text is not a node list.
    """
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if match is None:
        raise ValueError(f"SLURM_STEP_NODELIST must be a Slurm node list, got {nodes!r}.")
    prefix, first, suffix = match.groups(default="")
    return f"{prefix}{first}{suffix}"
