"""An ablation as shell commands, one per run, or as a Slurm array job."""

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
# Add the partition, time limit, memory and --gpus-per-task=1 that your cluster needs, then:
#   mkdir -p {folder}/logs && sbatch THIS_FILE
# When all tasks have ended, run `titanrl ablate` on the same file to write the report.
set -euo pipefail
readarray -t commands <<'COMMANDS'
{commands}
COMMANDS
eval "srun ${{commands[SLURM_ARRAY_TASK_ID]}}"
"""


def command(run: PlannedRun, nproc: int = 1) -> str:
    """Return the shell command that executes a run, relative to this process's working directory."""
    words = ["titanrl", "train", str(run.base), *(f"--set={each}" for each in run.overrides)]
    if nproc > 1:
        words.append(f"--nproc={nproc}")
    if run.state() == "unfinished":
        words.append("--resume")
    return shlex.join(words)


def slurm_array(name: str, runs: Sequence[PlannedRun], nproc: int = 1, cores: int = 8) -> str:
    """Return an sbatch script with one task per run; srun starts the ranks of a task.

    Args:
        name: name of the job.
        runs: the runs, at least one.
        nproc: number of ranks per run.
        cores: number of cores per rank.
    """
    folder = runs[0].folder.path.parent
    return TEMPLATE.format(
        name=shlex.quote(name),
        last=len(runs) - 1,
        folder=shlex.quote(str(folder)),
        nproc=nproc,
        cores=cores,
        commands="\n".join(command(run) for run in runs),
    )
