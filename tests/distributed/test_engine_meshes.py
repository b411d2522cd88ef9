"""Every mesh gives the metrics, gradients, updates and scores of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.torchrun import launch
from titanrl.models import tiny

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(2400)]
WORKER = Path(__file__).parent / "worker.py"
RTOL = 1e-5
REPLICATE, SHARD = "data_parallel_replicate_degree", "data_parallel_shard_degree"
TENSOR, PIPELINE = "tensor_parallel_degree", "pipeline_parallel_degree"
EXPERT = "expert_parallel_degree"
INTERLEAVED = {"pipeline_parallel_schedule": "Interleaved1F1B"}
MESHES: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "fsdp": {SHARD: 2},
        "replicate": {REPLICATE: 2, SHARD: 1},
        "tensor": {TENSOR: 2},
        "tensor without sequence": {TENSOR: 2, "enable_sequence_parallel": False},
        "pipeline": {PIPELINE: 2},
        "interleaved": {PIPELINE: 2} | INTERLEAVED,
    },
    4: {
        "hsdp": {REPLICATE: 2, SHARD: 2},
        "fsdp x tensor": {SHARD: 2, TENSOR: 2},
        "fsdp x pipeline": {SHARD: 2, PIPELINE: 2},
        "fsdp x interleaved": {SHARD: 2, PIPELINE: 2} | INTERLEAVED,
        "tensor x pipeline": {TENSOR: 2, PIPELINE: 2},
        "fsdp": {SHARD: 4},
        "tensor": {TENSOR: 4},
    },
    8: {"fsdp x tensor x pipeline": {SHARD: 2, TENSOR: 2, PIPELINE: 2}},
}
TIED = {2: ["fsdp", "tensor", "pipeline", "interleaved"], 4: ["tensor x pipeline"]}
"""Cases that also run with a tied head, of which both ends of a pipeline have a copy."""
SHARED = {
    2: ["fsdp", "replicate", "tensor", "tensor without sequence", "pipeline", "interleaved"],
    4: ["fsdp x tensor", "tensor x pipeline", "tensor"],
}
"""Cases with a critic's head on the policy's backbone."""
SHARED_TIED = {2: ["fsdp", "tensor", "pipeline"]}
WIDE = [(4, "fsdp"), (4, "tensor")]
"""Cases of one mesh axis: a model with as many heads of keys as ranks."""
EXPERTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "experts over fsdp": {SHARD: 2, EXPERT: 2},
        "experts over tensor": {TENSOR: 2, EXPERT: 2},
        "experts in a pipeline": {PIPELINE: 2},
    },
    4: {
        "experts over fsdp x tensor": {SHARD: 2, TENSOR: 2, EXPERT: 4},
        "experts over fsdp in a pipeline": {SHARD: 2, PIPELINE: 2, EXPERT: 2},
    },
}
"""Cases of mixtures of experts."""
MIXTURES = {2: ("qwen3_moe", "deepseek_v3"), 4: ("qwen3_moe",)}
LAYOUTS = {processes: MESHES[processes] | EXPERTS.get(processes, {}) for processes in MESHES}
CASES = [
    (processes, mesh, "wide" if (processes, mesh) in WIDE else "untied")
    for processes, meshes in MESHES.items()
    for mesh in meshes
]
CASES += [(processes, mesh, "tied") for processes, meshes in TIED.items() for mesh in meshes]
CASES += [(processes, mesh, "shared") for processes, meshes in SHARED.items() for mesh in meshes]
CASES += [(processes, mesh, "shared tied") for processes, meshes in SHARED_TIED.items() for mesh in meshes]
CASES += [(n, mesh, kind) for n, kinds in MIXTURES.items() for mesh in EXPERTS[n] for kind in kinds]
Results = dict[tuple[int, str], list[dict[str, Any]]]
"""(processes, case) -> results of each rank."""


def launch_cases(folder: Path, processes: int, cases: dict[str, dict[str, Any]]) -> Results:
    folder.mkdir(parents=True)
    (folder / "cases.json").write_text(json.dumps(cases))
    ranks = launch(WORKER, folder, processes, timeout_seconds=1200)
    return {(processes, name): [rank[name] for rank in ranks] for name in cases}


@pytest.fixture(scope="module")
def export_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("meshes")


@pytest.fixture(scope="module")
def results(export_folder: Path) -> Results:
    """Every case in one launch per number of processes, because the launch takes most of the time."""
    folder = export_folder
    model = tiny.create(folder / "model", layers=4, tied=False, scale=0.2)
    tied = tiny.create(folder / "tied", layers=4, scale=0.2, seed=3)
    critic = tiny.create(folder / "critic", head="value", layers=3, scale=0.2, seed=2)
    teacher = tiny.create(folder / "teacher", layers=2, hidden=16, scale=0.4, seed=1)
    wide = tiny.create(folder / "wide", kv_heads=4, tied=False, scale=0.2)
    untied = {
        "model": str(model),
        "critic": str(critic),
        "teacher": str(teacher),
        "losses": ["ppo_clip starved", "gspo starved", "dpo starved", "sft starved", "topk_distill"],
        "max_norm": 0.05,
    }
    kinds = {
        "untied": untied,
        **{
            family: {
                "model": str(
                    tiny.create(folder / family, model_type=family, layers=3, tied=False, scale=0.2)
                ),
                "losses": ["ppo_clip", "gspo"],
                "max_norm": 0.05,
            }
            for family in MIXTURES[2]
        },
        "wide": {"model": str(wide), "losses": ["ppo_clip"], "max_norm": 0.05},
        "tied": {"model": str(tied), "losses": ["ppo_clip", "dpo"], "max_norm": 0.05},
        **{
            kind: {
                "model": str(folder / model),
                "critic": None,
                "losses": ["ppo_clip", "gspo starved"],
                "max_norm": 0.05,
            }
            for kind, model in (("shared", "wide"), ("shared tied", "tied"))
        },
        "bfloat16": {"model": str(tied), "losses": ["ppo_clip"], "max_norm": 1e9, "precision": "bfloat16"},
    }
    actual = launch_cases(folder / "1", 1, kinds)
    for processes in MESHES:
        cases = {
            f"{mesh} {kind}": kinds[kind]
            | {"parallelism": LAYOUTS[processes][mesh], "export": str(folder / f"{processes} {mesh} {kind}")}
            for count, mesh, kind in CASES
            if count == processes
        }
        if processes == 2:
            cases["bfloat16"] = kinds["bfloat16"]
        actual |= launch_cases(folder / str(processes), processes, cases)
    return actual


def of_all(ranks: list[dict[str, Any]], step: str, key: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of all ranks by name: pipeline ranks hold different ones."""
    return {name: tensor for rank in ranks for name, tensor in rank["steps"][step][key].items()}


def assert_near(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Compares tensors by name, to RTOL of the largest entry."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        error = float((actual[name] - value).abs().max() / value.abs().max().clamp_min(1e-30))
        assert error <= RTOL, f"{name}: {error:.1e}"


@pytest.mark.parametrize(("processes", "mesh", "kind"), CASES)
def test_mesh_gives_the_metrics_of_one_process(
    results: Results, processes: int, mesh: str, kind: str
) -> None:
    (one,) = results[1, kind]
    for rank in results[processes, f"{mesh} {kind}"]:
        assert rank["steps"].keys() == one["steps"].keys()
        for name, step in one["steps"].items():
            expected, actual = step["metrics"], rank["steps"][name]["metrics"]
            assert actual.keys() == expected.keys()
            for metric, (total, count) in expected.items():
                assert actual[metric] == (pytest.approx(total, rel=RTOL, abs=RTOL), count), (name, metric)


@pytest.mark.parametrize("key", ["gradients", "clipped"])
@pytest.mark.parametrize(("processes", "mesh", "kind"), CASES)
def test_mesh_gives_the_gradients_of_one_process(
    results: Results, processes: int, mesh: str, kind: str, key: str
) -> None:
    (one,) = results[1, kind]
    for name, step in one["steps"].items():
        assert_near(of_all(results[processes, f"{mesh} {kind}"], name, key), step[key])


@pytest.mark.parametrize(("processes", "mesh", "kind"), CASES)
def test_every_rank_streams_the_weights_of_one_process(
    results: Results, processes: int, mesh: str, kind: str
) -> None:
    (one,) = results[1, kind]
    first, *others = (rank["weights"] for rank in results[processes, f"{mesh} {kind}"])
    assert_near(first, one["weights"])
    for other in others:
        assert all(torch.equal(value, other[name]) for name, value in first.items())


@pytest.mark.parametrize(("processes", "mesh", "kind"), CASES)
def test_mesh_gives_the_scores_of_one_process(results: Results, processes: int, mesh: str, kind: str) -> None:
    (one,) = results[1, kind]
    for rank in results[processes, f"{mesh} {kind}"]:
        for step, expected in one["scores"].items():
            actual = rank["scores"][step]
            assert actual.keys() == expected.keys()
            here = torch.isin(expected["group_id"], actual["group_id"])
            ours = {key: value.float() for key, value in actual.items()}
            assert_near(ours, {key: value[here].float() for key, value in expected.items()})


def test_cases_hold_uneven_micro_batches_and_ranks_without_loss_tokens(results: Results) -> None:
    """Equal parts would hide a mean over micro-batches or ranks."""
    (one,) = results[1, "untied"]
    for step, parts in one["trained"].items():
        assert len(set(parts)) >= 2, step
        for processes, mesh in ((2, "fsdp"), (4, "hsdp")):
            ranks = [rank["trained"][step] for rank in results[processes, f"{mesh} untied"]]
            assert sum(map(sum, ranks)) == sum(parts)
            assert len(set(map(tuple, ranks))) >= 2
            assert sum(not any(rank) for rank in ranks) == (processes // 2 if "starved" in step else 0)


@pytest.mark.parametrize("kind", ["shared", "shared tied"])
def test_shared_value_head_is_trained_and_not_exported(results: Results, kind: str) -> None:
    """Otherwise its gradient would not be compared, and it would be sent to a sampler."""
    (one,) = results[1, kind]
    for name, step in one["steps"].items():
        assert one["scores"][name]["value"].abs().max() > 1
        assert step["gradients"]["lm_head.value.weight"].abs().max() > 0.01
    assert not [name for name in one["weights"] if "value" in name]


def test_gradients_are_clipped_in_most_steps(results: Results) -> None:
    """Otherwise clipped and unclipped gradients would be equal."""
    (one,) = results[1, "untied"]
    norms = [step["metrics"]["update/grad_norm"][0] for step in one["steps"].values()]
    assert sum(norm > 0.05 for norm in norms) >= len(norms) - 2


@pytest.mark.parametrize(
    ("processes", "mesh"), [(2, "pipeline"), (2, "interleaved"), (4, "tensor x pipeline")]
)
def test_tied_embeddings_stay_equal_over_pipeline_stages(results: Results, processes: int, mesh: str) -> None:
    (one,) = results[1, "tied"]
    ranks = results[processes, f"{mesh} tied"]
    ends = {name: value for rank in ranks for name, value in rank["ends"].items()}
    embedding, head = ends["tok_embeddings.weight"], ends["lm_head.weight"]
    assert torch.equal(embedding, head)
    assert_near(
        {"tok_embeddings.weight": head}, {"tok_embeddings.weight": one["ends"]["tok_embeddings.weight"]}
    )


def test_tied_model_is_exported_tied_under_pipeline_parallelism(
    results: Results, export_folder: Path
) -> None:
    """transformers ties a head by the config, so the export must not drop an untied head."""
    import transformers

    folder = export_folder / "2 pipeline tied"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.config.tie_word_embeddings
    weights = results[2, "pipeline tied"][0]["weights"]
    assert "lm_head.weight" not in weights
    assert torch.equal(loaded.lm_head.weight, weights["model.embed_tokens.weight"])


def test_bfloat16_on_two_processes_equals_one_process(results: Results) -> None:
    (one,) = results[1, "bfloat16"]
    expected = one["steps"]["ppo_clip"]
    for rank in results[2, "bfloat16"]:
        actual = rank["steps"]["ppo_clip"]
        assert actual["metrics"]["loss/total"] == pytest.approx(expected["metrics"]["loss/total"], abs=RTOL)
        for name, value in expected["gradients"].items():
            # Each rank rounds its own sum to bfloat16 before the float32 reduction.
            torch.testing.assert_close(actual["gradients"][name], value, atol=4e-3, rtol=2e-2)
