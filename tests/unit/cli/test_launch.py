"""Rank detection under launchers."""

from __future__ import annotations

import pytest

from titanrl.runtime.launch import first_host, launched, slurm_environment

SRUN = {
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
}


def test_srun_variables_are_mapped_to_torchrun_variables() -> None:
    assert slurm_environment(SRUN) == {
        "RANK": "11",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "16",
        "MASTER_ADDR": "gpu003",
        "MASTER_PORT": "23456",
    }


def test_variables_set_by_the_user_are_kept() -> None:
    environment = slurm_environment({**SRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"})
    assert not {"MASTER_ADDR", "MASTER_PORT"} & environment.keys()
    assert environment["RANK"] == "11"


def test_torchrun_inside_a_slurm_job_takes_precedence() -> None:
    environment = {**SRUN, "RANK": "0", "WORLD_SIZE": "2"}
    assert launched(environment)
    assert slurm_environment(environment) == {}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {
            "SLURM_PROCID": "0",
            "SLURM_NTASKS": "16",
            "SLURM_JOB_ID": "1",
        },  # the batch script, which is no rank
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_single_process_has_no_rank(environment: dict[str, str]) -> None:
    assert slurm_environment(environment) == {}
    assert not launched(environment)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("gpu7", "gpu7"),
        ("gpu7,gpu9", "gpu7"),
        ("gpu[003-007,9]", "gpu003"),
        ("gpu[12,14]", "gpu12"),
        ("rack1-gpu[01-02]-ib,cpu[1-3]", "rack1-gpu01-ib"),
    ],
)
def test_first_host_of_a_node_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host
