"""Online and offline tables: those for [data], and what data a loss needs."""

from __future__ import annotations

import pytest

from tests.unit.config.conftest import EXPERIMENT, Write
from titanrl.config import dumps, load
from titanrl.errors import ConfigError
from titanrl.protocols.batch import key_name

DPO = """
[model]
path = "models/none"
[data]
name = "dataset"
path = "pairs.jsonl"
format = "preference"
[algorithm.loss]
name = "dpo"
[algorithm.aggregation]
name = "sequence_mean"
[reference]
[loop]
steps = 2
prompts_per_step = 8
"""
HELD_OUT = "evaluation={{data={{name='dataset', path='x.jsonl', format='{}'}}}}".format
ASKED = "evaluation={prompts={name='jsonl', path='x'}}"
ONLINE = ["algorithm.loss={name='simpo'}", "algorithm.advantage=", "algorithm.kl=", "reference="]
SAMPLER, REWARD = "sampler={name='torch', max_response_tokens=8}", "reward=[{name='repetition'}]"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data="], "[prompts] or [data] must be given, got neither; responses are sampled for [prompts]"),
        (["prompts={name='jsonl', path='x'}"], "[prompts] or [data] must be given, got both"),
        (
            ["sampler={name='torch', max_response_tokens=8}"],
            (
                "[sampler] must be absent with [data], which samples no responses, unless there "
                "are [evaluation.prompts]."
            ),
        ),
        (["reward=[{name='repetition'}]"], "[reward.0] must be absent with [data]"),
        (
            ["loop.samples_per_prompt=4"],
            "[loop] samples_per_prompt is not used with [data], got 4; leave it out.",
        ),
        (["alerts.length_growth=3"], "[alerts] length_growth is not used with [data], got 3.0: it is about"),
        (["alerts.stop=['entropy']"], "[alerts] stop must not name 'entropy' with [data]: it is about"),
        (
            [HELD_OUT("preference"), "evaluation.temperature=1"],
            "[evaluation] temperature is not used with [data], got 1.0; leave it out.",
        ),
        (
            ["evaluation={interval=5}"],
            "[evaluation.data] is missing; give held-out data, or [evaluation.prompts], or",
        ),
        ([ASKED], "[sampler] is missing; it samples responses for [evaluation.prompts]."),
        ([ASKED, SAMPLER], "[evaluation] needs a [[reward]] that scores the responses; add one."),
        (
            [ASKED, REWARD, "sampler={name='torch', max_response_tokens=8, temperature=0.5}"],
            "[sampler] temperature is not used with [data], got 0.5; leave it out.",
        ),
        (
            [HELD_OUT("ranked")],
            "[evaluation.data] must have the same keys as [data]; give both the same format.",
        ),
        (
            ["data={name='jsonl', path='x.jsonl'}"],
            "[data] name must not be 'jsonl', which has prompts without responses; use one of: dataset, ",
        ),
        (
            ["data.format=ranked"],
            "[data] must have chosen and rejected, for loss 'dpo', got 'ranked'; use format 'preference'.",
        ),
        (
            ["algorithm.loss={name='sft'}", "reference="],
            "[data] must have no pairs, whose rejected responses it would also learn, for loss 'sft'",
        ),
        (
            ["algorithm.loss={name='sft'}", "reference=", "data.format=unpaired"],
            "[data] has 'reward', which no component reads; choose a loss or a filter that reads it.",
        ),
        (["reference="], "loss 'dpo' reads 'ref_logprob', which no stage writes; add a [reference] table."),
        (
            ["algorithm.loss={name='kto'}", "data.format=messages"],
            (
                "loss 'kto' reads 'reward', which no stage writes; choose a [data] format that provides it "
                "(this one provides input_ids, labels, loss_mask, group_id, row_id), or another component."
            ),
        ),
        (["algorithm.old_logprob=sampler"], "[algorithm] old_logprob must be 'recompute' with [data]"),
        (
            ["algorithm.loss={name='kto'}", "data.format=unpaired", "reference.cache=x"],
            "[reference] cache must be left out for loss 'kto': its reference point is taken on new rows",
        ),
        (["data.formt=ranked"], "[data] formt is not a key of source 'dataset', got 'ranked'; did you mean"),
    ],
)
def test_tables_incompatible_with_data_are_refused(write: Write, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(DPO), overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sampler="], "[sampler] is missing; it samples responses for [prompts]."),
        (
            ["reference.cache=x"],
            "[reference] cache must be left out with [prompts]; sampled responses are new",
        ),
        (
            [*ONLINE, "loop.samples_per_prompt=1"],
            "[loop] samples_per_prompt must be >= 2 for loss 'simpo', got 1; its pairs are responses to one",
        ),
        (
            [*ONLINE, "loop.samples_per_prompt=2", "reward="],
            "pairs for loss 'simpo' reads 'reward', which no stage writes; add a [[reward]].",
        ),
        (
            ["prompts={name='dataset', path='x.jsonl', format='messages'}"],
            "[prompts] name must not be 'dataset', which has dataset examples; use one of: jsonl, lab_source",
        ),
        ([HELD_OUT("messages")], "[evaluation.data] must be absent from an experiment with [prompts]"),
        (
            ["algorithm.advantage={name='reinforce_plus_plus'}", "alerts.stop=['zero_std_groups']"],
            (
                "[alerts] stop must not name 'zero_std_groups', which advantage 'reinforce_plus_plus' never "
                "raises: it compares no groups; leave it out."
            ),
        ),
    ],
)
def test_tables_incompatible_with_prompts_are_refused(
    write: Write, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(EXPERIMENT), overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [HELD_OUT("preference")],
        [ASKED, SAMPLER, REWARD, "evaluation.temperature=0.5"],
        [HELD_OUT("preference"), "evaluation.prompts={name='jsonl', path='x'}", SAMPLER, REWARD],
        ["algorithm.loss={name='simpo'}", "reference="],
        ["algorithm.loss={name='sft'}", "reference=", "data.format=messages"],
        ["algorithm.loss={name='kto'}", "data.format=unpaired"],
        ["algorithm.loss={name='pairwise_ranking'}", "reference=", "data.format=ranked", "model.head=value"],
        ["algorithm.loss={name='process_bce'}", "reference=", "data.format=stepwise", "model.head=value"],
        [
            "algorithm.loss={name='sft'}",
            "reference=",
            "data.format=ranked",
            "algorithm.filter=[{name='best_of_n', keep=1}]",
        ],
        [
            "algorithm.loss={name='reinforce'}",
            "reference=",
            "data.format=ranked",
            "algorithm.advantage={name='grpo'}",
        ],
    ],
)
def test_tables_compatible_with_data_round_trip(write: Write, overrides: list[str]) -> None:
    experiment = load(write(DPO), overrides)
    assert load(write(dumps(experiment), "again.toml"), ["run.name=experiment"]) == experiment


def test_dataflow_of_data_begins_with_the_columns_of_its_format(write: Write) -> None:
    experiment = load(write(DPO), ["algorithm.loss={name='kto'}", "data.format=unpaired"])
    shown = [(actor.stage, actor.name, tuple(map(key_name, actor.writes))) for actor in experiment.dataflow()]
    assert shown[:3] == [
        ("sample", "source 'dataset'", ("input_ids", "labels", "loss_mask", "group_id", "row_id", "reward")),
        ("score", "reference", ("ref_logprob",)),
        ("score", "reference point", ("reference_point",)),
    ]
    assert experiment.scored_keys() == (frozenset({"ref_logprob", "reference_point"}), True)
    zero = load(write(DPO), ["algorithm.loss={name='kto', variant='apo_zero'}", "data.format=unpaired"])
    assert zero.scored_keys()[0] == {"ref_logprob"}
