"""Value models in one process: values, gradients, new heads, loading and export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

import titanrl
from tests.unit.engine.conftest import make_batch
from tests.unit.engine.test_engine import gradients_of
from titanrl.algorithm.objective import Objective
from titanrl.config.engine_tables import Compile
from titanrl.engine import Engine
from titanrl.engine.heads.token import HeadQuery
from titanrl.engine.heads.value import ValueHead
from titanrl.errors import ConfigError
from titanrl.models import tiny

Make = Callable[..., Engine]


@pytest.fixture(scope="module")
def value_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.create(tmp_path_factory.mktemp("model") / "value", head="value", scale=0.2)


@pytest.fixture
def objective() -> Objective:
    return Objective(loss=titanrl.build("loss", {"name": "value"}))


def transformers_values(folder: Path, tokens: torch.Tensor) -> torch.Tensor:
    """Returns [N, L] the score at every position, with gradients for the weights of a new model."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    return model.score(model.model(tokens).last_hidden_state).squeeze(-1)


def test_value_head_is_a_float32_product_of_selected_states() -> None:
    head = ValueHead(ValueHead.Config(in_features=3)).bfloat16()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 2.0, -1.0]]))
    hidden = torch.tensor([[[1.0, 0.0, 0.0], [256.0, 1.0, 0.5], [0.0, 3.0, 3.0]]]).bfloat16()
    with head.with_query(
        HeadQuery(torch.tensor([1, 0]), torch.zeros(2, 1, dtype=torch.int64), temperature=0.1)
    ):
        values = head(hidden)
    # 257.5 is not representable in bfloat16: a product in bfloat16 gives 258.
    assert values.tolist() == [257.5, 1.0]
    assert values.dtype == torch.float32
    assert head(hidden).tolist() == [[1.0, 257.5, 3.0]]


def test_several_heads_score_their_own_rows_and_a_weighted_sum() -> None:
    head = ValueHead(ValueHead.Config(in_features=2, out_features=3, weights=(2.0, 0.5, -1.0)))
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    hidden = torch.tensor([[[3.0, 5.0], [2.0, 7.0]]])
    for numbers, wanted in (([0, 1], [3.0, 7.0]), ([2, -1], [8.0, -1.5]), (None, [0.5, -1.5])):
        heads = None if numbers is None else torch.tensor(numbers)
        with head.with_query(
            HeadQuery(torch.tensor([0, 1]), torch.zeros(2, 1, dtype=torch.int64), heads=heads)
        ):
            assert head(hidden).tolist() == wanted
    assert head(hidden).tolist() == [[0.5, -1.5]]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_values_and_export_equal_transformers(tmp_path: Path, make_engine: Make, family: str) -> None:
    folder = tiny.create(tmp_path / "model", model_type=family, head="value", scale=0.2)
    engine = make_engine(model=str(folder), head="value", temperature=0.5)
    batch = make_batch()
    actual = engine.score(batch, ("value", "logprob"))
    expected = transformers_values(folder, batch["input_ids"])
    wanted = torch.where(batch["loss_mask"], expected, 0.0)
    assert wanted.abs().max() > 0.5
    torch.testing.assert_close(actual["value"], wanted, atol=2e-5, rtol=1e-5)
    assert not actual["logprob"].any()
    engine.export(tmp_path / "exported")
    exported = transformers_values(tmp_path / "exported", batch["input_ids"])
    torch.testing.assert_close(exported, expected, atol=1e-6, rtol=1e-6)


TEXTS = ("1 + 1 = 2", "I think it is 3.", "2", "No idea, but it must be more than 1.")


@pytest.mark.parametrize("names_padding", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_transformers_scores_padded_texts_as_the_engine_does(
    tmp_path: Path, make_engine: Make, family: str, names_padding: bool
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tiny.create(tmp_path / "model", model_type=family, head="value", scale=0.2)
    if not names_padding:
        for file, key in (("config.json", "pad_token_id"), ("tokenizer_config.json", "pad_token")):
            table = json.loads((folder / file).read_text())
            del table[key]
            (folder / file).write_text(json.dumps(table))
    engine = make_engine(model=str(folder), head="value")
    engine.export(tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    rows = [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in TEXTS]
    raw = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    mask = torch.zeros(len(rows), raw.shape[1] - 1, dtype=torch.bool)
    for index, row in enumerate(rows):
        raw[index, : len(row)] = torch.tensor(row)
        mask[index, len(row) - 2] = True
    tensors = {"input_ids": raw[:, :-1], "labels": raw[:, 1:], "loss_mask": mask}
    batch = TensorDict({**tensors, "group_id": torch.arange(len(rows))}, batch_size=[len(rows)])
    ours = engine.score(batch, ("value",))["value"][mask]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    assert model.config.pad_token_id == tokenizer.pad_token_id
    theirs = model(**tokenizer(list(TEXTS), padding=True, return_tensors="pt")).logits[:, 0]
    assert ours.std() > 0.3
    torch.testing.assert_close(ours, theirs.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_new_head_on_a_language_model_is_zero_and_exports_the_backbone(
    tmp_path: Path, make_engine: Make, model_folder: Path, objective: Objective
) -> None:
    engine = make_engine(head="value")
    batch = make_batch()
    batch["value"] = engine.score(batch, ("value",))["value"]
    assert not batch["value"].any()
    batch["returns"] = batch["loss_mask"].float()
    for _ in range(3):
        engine.update(batch, objective, (0.0, 0.0))
    moved = engine.score(batch, ("value",))["value"]
    assert moved[batch["loss_mask"]].mean() > 0.1
    engine.export(tmp_path / "exported")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    again = make_engine(model=str(tmp_path / "exported"), head="value")
    assert torch.equal(again.score(batch, ("value",))["value"], moved)


def test_update_gradient_equals_autograd_on_transformers(
    make_engine: Make, value_folder: Path, objective: Objective
) -> None:
    from transformers import AutoModelForSequenceClassification

    engine = make_engine(model=str(value_folder), head="value", training={"max_norm": 1e9})
    batch = make_batch()
    mask = batch["loss_mask"]
    batch["value"] = engine.score(batch, ("value",))["value"]
    batch["returns"] = torch.where(mask, batch["value"] + batch["advantage"], 0.0)
    recorded = gradients_of(engine)
    metrics = engine.update(batch, objective, (0.0, 0.0))
    model = AutoModelForSequenceClassification.from_pretrained(value_folder, dtype=torch.float32)
    values = model.score(model.model(batch["input_ids"]).last_hidden_state).squeeze(-1)
    loss = torch.where(mask, batch["loss_weight"] * (values - batch["returns"]).square() / 2, 0.0).sum()
    loss.backward()
    assert metrics["loss/total"][0] == pytest.approx(float(loss.detach()), rel=1e-5)
    theirs = dict(model.named_parameters())
    for ours, name in (
        ("lm_head.weight", "score.weight"),
        ("norm.weight", "model.norm.weight"),
        ("layers.0.feed_forward.w1.weight", "model.layers.0.mlp.gate_proj.weight"),
        ("tok_embeddings.weight", "model.embed_tokens.weight"),
    ):
        torch.testing.assert_close(recorded[0][ours], theirs[name].grad, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_compiled_update_of_values_is_one_graph_and_equals_eager(
    make_engine: Make, value_folder: Path, objective: Objective
) -> None:
    recorded = []
    for enable in (False, True):
        compile = Compile(enable=enable, components=("loss",), backend="aot_eager")
        engine = make_engine(model=str(value_folder), head="value", compile=compile)
        batch = make_batch()
        batch["value"] = batch["advantage"] / 2
        batch["returns"] = batch["advantage"]
        recorded.append([engine.update(batch, objective, (0.0, 0.0)) for _ in range(2)])
    for eager, compiled in zip(*recorded, strict=True):
        assert compiled.keys() == eager.keys()
        for name, (value, count) in eager.items():
            assert compiled[name] == (pytest.approx(value, rel=1e-4, abs=1e-6), count), name


def test_loss_must_match_the_head(make_engine: Make, objective: Objective) -> None:
    clipped = Objective(loss=titanrl.build("loss", {"name": "ppo_clip"}))
    with pytest.raises(ValueError, match="Value cannot train a model that computes no values"):
        make_engine().update(make_batch(), objective, (0.0, 0.0))
    with pytest.raises(ValueError, match="PPOClip cannot train a model that computes only values"):
        make_engine(head="value").update(make_batch(), clipped, (0.0, 0.0))


def test_value_model_is_refused_as_policy(make_engine: Make, value_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"path must be a language model, got .*, a value model"):
        make_engine(model=str(value_folder))


def test_classifier_of_two_labels_is_refused_as_value_model(tmp_path: Path, make_engine: Make) -> None:
    folder = tiny.create(tmp_path / "model", head="value")
    config = json.loads((folder / "config.json").read_text())
    del config["id2label"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"must have 1 label \(id2label\) to be a value model, got 2"):
        make_engine(model=str(folder), head="value")
