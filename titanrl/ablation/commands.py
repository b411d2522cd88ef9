"""An ablation as commands that run anywhere: one a run, or an array job for Slurm."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from titanrl.ablation.plan import PlannedRun

__all__ = ["command", "slurm_array"]

TEMPLATE = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --output={folder}/logs/slurm-%A-%a.log
#SBATCH --nodes=1
#SBATCH --ntasks-per-node={nproc}
#SBATCH --cpus-per-task={cores}
# Add partition, time limit, memory and --gpus-per-task=1 as your cluster wants them, then:
#   mkdir -p {folder}/logs && sbatch THIS_FILE
# When all have ended, `titanrl ablate` with the same file writes the report.
set -euo pipefail
readarray -t commands <<'COMMANDS'
{commands}
COMMANDS
eval "srun ${{commands[SLURM_ARRAY_TASK_ID]}}"
"""


def command(run: PlannedRun, nproc: int = 1) -> str:
    """Returns the shell command that makes the run, from the folder in which this process works."""
    words = ["titanrl", "train", str(run.base), *(f"--set={each}" for each in run.overrides)]
    if nproc > 1:
        words.append(f"--nproc={nproc}")
    if run.state() == "unfinished":
        words.append("--resume")
    return shlex.join(words)


def slurm_array(name: str, runs: Sequence[PlannedRun], nproc: int = 1, cores: int = 8) -> str:
    """Returns an sbatch script with a task for each run; srun starts the ranks of one.

    Args:
        nproc: ranks of a run. cores: of each rank.
    """
    folder = runs[0].folder.path.parent
    return TEMPLATE.format(
        name=shlex.quote(name), last=len(runs) - 1, folder=shlex.quote(str(folder)), nproc=nproc, cores=cores,
        commands="\n".join(command(run) for run in runs),
    )  # fmt: skip
