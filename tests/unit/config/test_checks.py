"""Tables against each other: pairs that are forbidden, and the static dataflow."""

from __future__ import annotations

import pytest

from tests.unit.config.conftest import EXPERIMENT, Write
from titanrl.config import Experiment, load
from titanrl.config.dump import to_table
from titanrl.errors import ConfigError
from titanrl.protocols.batch import STAGES


def refusal(write: Write, *overrides: str, text: str = EXPERIMENT) -> str:
    with pytest.raises(ConfigError) as caught:
        load(write(text), overrides)
    return str(caught.value)


ON_DATA = ["prompts=", "sampler=", "reward=", "data={name='dataset', path='x.jsonl', format='messages'}"]
CLIPPED = "algorithm.loss.reads=['old_logprob', 'advantage', '{}']"

ACTOR_CRITIC = ("algorithm.advantage={name='gae'}", "critic={}")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["reference="],
            (
                "[algorithm.kl] kl 'lab_kl' in the loss reads 'ref_logprob', which no stage writes; "
                "add a [reference] table."
            ),
        ),
        (
            ["loop.skip_zero_advantage=true"],
            (
                "[loop] skip_zero_advantage must be false here, got true: rows without advantage cannot be "
                "left out, since loss 'lab_loss' has a gradient there or compares rows."
            ),
        ),
        (
            ["loop.skip_zero_advantage=true", "algorithm.loss={name='ppo_clip'}"],
            "since the KL term in the loss needs them.",
        ),
        (["algorithm.kl="], "[reference] is read by no component; remove the table, or add [algorithm.kl]."),
        (
            ["reward="],
            (
                "[algorithm.advantage] advantage 'lab_advantage' reads 'reward', which no stage writes; "
                "add a [[reward]]."
            ),
        ),
        (
            ["algorithm.advantage="],
            (
                "[algorithm.loss] loss 'lab_loss' reads 'advantage', which no stage writes; "
                "add an [algorithm.advantage] table."
            ),
        ),
        (
            [CLIPPED.format("value")],
            ("[algorithm.loss] loss 'lab_loss' reads 'value', which no stage writes; add a [critic] table."),
        ),
        (
            ["critic={}"],
            (
                "[critic] is read by no component; remove the table, or choose an [algorithm.advantage] that "
                "reads values, such as 'gae'."
            ),
        ),
        (
            [*ACTOR_CRITIC, "critic.loss={name='lab_loss'}"],
            "[critic.loss] name must train values, got 'lab_loss', which reads log-probs; use 'value'.",
        ),
        (
            [*ACTOR_CRITIC, "critic.warmup_steps=2"],
            "[critic] warmup_steps must be < [loop] steps (2), got 2; the policy would never be updated.",
        ),
        (
            [*ACTOR_CRITIC, "critic.coefficient=0.2"],
            "[critic] coefficient is only used with shared = true, got 0.2; leave it out.",
        ),
        (
            [*ACTOR_CRITIC, "critic.shared=true", "critic.coefficient=0"],
            "[critic] coefficient must be in (0, inf), got 0",
        ),
        (
            [*ACTOR_CRITIC, "critic.shared=true", "critic.path=models/other"],
            (
                "[critic] path must be left out with shared = true, got 'models/other': the critic is a head "
                "on the policy's backbone."
            ),
        ),
        (
            [*ACTOR_CRITIC, "critic.shared=true", "critic.warmup_steps=1"],
            "[critic] warmup_steps must be left out with shared = true, got 1: the policy's backbone",
        ),
        (
            [*ACTOR_CRITIC, "critic.shared=true", "critic.optimizer.lr=1e-5"],
            (
                "[critic.optimizer] must be left out with [critic] shared = true: the policy's own "
                "[optimizer] also trains the critic's head (to remove a base file's table: "
                "drop = ['critic.optimizer'])."
            ),
        ),
        (
            [*ACTOR_CRITIC, "critic.shared=true", "critic.lr_scheduler.warmup_steps=1"],
            "[critic.lr_scheduler] must be left out with [critic] shared = true",
        ),
        (
            [
                *ACTOR_CRITIC,
                "critic.shared=true",
                "loop.skip_zero_advantage=true",
                "algorithm.loss={name='ppo_clip'}",
                "algorithm.kl=",
                "reference=",
            ],
            "cannot be left out, since the critic on the policy's backbone learns from them.",
        ),
        (
            ["loop.target_kl=0.02"],
            "[loop] target_kl is not used where a batch is one optimizer step; leave it out, or raise",
        ),
        (
            ["loop.target_kl=0.02", "loop.epochs=2", "algorithm.loss.reads=['advantage']"],
            "[loop] target_kl needs a loss that reports approx_kl, got loss 'lab_loss'; leave it out.",
        ),
        (
            ["algorithm.reward_scaling={}", "algorithm.advantage={name='teacher_kl'}", "teacher={path='x'}"],
            "[algorithm.reward_scaling] scales a reward that no component reads; remove it, or choose",
        ),
        (
            [*ON_DATA, "algorithm.reward_scaling={}"],
            "[algorithm.reward_scaling] must be absent with [data], whose rewards are labels; remove it.",
        ),
        ([*ACTOR_CRITIC, "critic.optimizer.lr=0"], "[critic.optimizer] lr must be in (0, inf), got 0"),
        (
            [CLIPPED.format("old_logprobs")],
            ("reads 'old_logprobs', which no stage writes; did you mean 'old_logprob'?"),
        ),
        ([CLIPPED.format("zzz")], "reads 'zzz', which no stage writes; it is no key of the batch."),
        ([CLIPPED.format("keep")], "reads 'keep', which no stage writes; add an [[algorithm.correction]]."),
        (
            ["algorithm.filter=[{name='lab_filter', key='lab_mtach'}]"],
            (
                "[algorithm.filter.0] filter 'lab_filter' reads 'rewards.lab_mtach', which no stage writes; "
                "did you mean 'lab_match'? add a [[reward]] labelled 'lab_mtach'."
            ),
        ),
        (
            ["reward=[{name='lab_length', correct='lab_match'}, {name='lab_match'}]"],
            (
                "[reward.0] reward 'lab_length' reads 'rewards.lab_match', which no stage writes before it; "
                "order the tables"
            ),
        ),
        (
            ["algorithm.kl.placement=reward"],
            (
                "[algorithm.kl] placement 'reward' puts the KL into token_reward, which advantage "
                "'lab_advantage' does not read"
            ),
        ),
        (
            ["algorithm.kl.placement=reward", "algorithm.kl.importance_weight=true"],
            "[algorithm.kl] importance_weight must be false for placement 'reward', got true",
        ),
        (
            ["algorithm.kl.placement=advantage", "algorithm.kl.gradient=straight_through_k2"],
            "[algorithm.kl] gradient must be 'pathwise' for placement 'advantage', got 'straight_through_k2'",
        ),
        (
            ["loop.samples_per_prompt=1"],
            "[loop] samples_per_prompt must be >= 2 for advantage 'lab_advantage', got 1",
        ),
        (
            ["loop.minibatches=3"],
            (
                "[loop] prompts_per_step must be a multiple of minibatches (3) times "
                "data-parallel ranks (1), got 8"
            ),
        ),
        (["parallelism.data_parallel_shard_degree=3"], "data-parallel ranks (3), got 8"),
        (["training.seq_len=32"], "[training] seq_len must be > [sampler] max_response_tokens (32), got 32"),
        (["sampler.top_k=5"], "[sampler] top_k must be off in training, got 5"),
        (
            ["reward=[{name='lab_match'}, {name='lab_match'}]"],
            "[reward.1] label must be unique, got 'lab_match' again",
        ),
        (
            ["algorithm.entropy={name='lab_adaptive'}"],
            "[algorithm.entropy] name must control the entropy, got 'lab_adaptive', which controls a KL term",
        ),
        (
            ["algorithm.kl.coefficient=", "algorithm.kl.controller={name='lab_entropy'}"],
            "[algorithm.kl] controller.name must control a KL term, got 'lab_entropy'",
        ),
        (
            ["algorithm.loss={name='lab_critic'}"],
            "[algorithm.loss] name must train a language model, got 'lab_critic', which needs [model] head",
        ),
        (
            ["model.head=value"],
            "[algorithm.loss] name must train values under [model] head = 'value', got 'lab_loss', which",
        ),
        (
            ["model.head=value", "algorithm.loss={name='lab_critic'}"],
            "[algorithm.kl] must be left out under [model] head = 'value', which has no log-probs",
        ),
        (
            ["model.head=value", "algorithm.loss={name='lab_critic'}", "algorithm.kl=", "reference="],
            "[model] head must be 'language' where responses are sampled, got 'value'",
        ),
        (
            ["algorithm.denominator=kept"],
            "[algorithm] denominator must be 'trainable' without a [[algorithm.correction]], got 'kept'",
        ),
        (
            ["algorithm.old_logprob=sampler", "algorithm.correction=[{name='lab_correction'}]"],
            (
                "[algorithm.correction.0] name must not compare old_logprob with sampler_logprob where "
                "old_logprob = 'sampler' makes them one, got 'lab_correction'; remove it, or set [algorithm] "
                "old_logprob = 'recompute'."
            ),
        ),
        (
            [CLIPPED.format("teacher_logprob")],
            "loss 'lab_loss' reads 'teacher_logprob', which no stage writes; add a [teacher] table.",
        ),
        (
            ["teacher={path='t'}"],
            "[teacher] is read by no component; remove the table, or choose loss 'topk_distill' or advantage",
        ),
        (
            [CLIPPED.format("candidate_ids"), "teacher={path='t'}"],
            (
                "[teacher] top_k is missing; loss 'lab_loss' reads the teacher's most probable tokens; "
                "give their number, such as 64."
            ),
        ),
        (
            [CLIPPED.format("teacher_logprob"), "teacher={path='t', top_k=8}"],
            "[teacher] top_k must be left out where no component reads candidate_ids, got 8.",
        ),
        (
            [CLIPPED.format("baseline_reward"), *ON_DATA],
            "reads 'baseline_reward', which no stage writes; use [prompts], for which greedy responses",
        ),
        (
            ["algorithm.old_logprob=sampler", *ON_DATA],
            "[algorithm] old_logprob must be 'recompute' with [data], got 'sampler'; offline data has no",
        ),
        (
            ["loop.kind=onlin"],
            "[loop] kind must be one of offline, online, got 'onlin'; did you mean 'online'?",
        ),
        (
            [*ON_DATA, "loop.kind=online"],
            "[loop] kind 'online' samples responses to [prompts], which is missing; add it.",
        ),
        (
            ["loop.kind=offline"],
            "[loop] kind 'offline' trains on [data], which is missing; add it.",
        ),
        (["teacher={path='t', top_k=0}"], "[teacher] top_k must be in [1, inf), got 0."),
        (
            ["algorithm.old_logprob=sampler", "algorithm.loss.name=lab_other_loss"],
            "[algorithm] old_logprob must be 'recompute' where no component reads it, got 'sampler'",
        ),
        (
            ["evaluation={prompts={name='lab_source', dataset='x'}, samples_per_prompt=4}"],
            "[evaluation] samples_per_prompt must be 1 at temperature 0, got 4",
        ),
        (
            ["checkpoint.keep_best='loss/total'"],
            "keep_best must name a metric of the validation, eval/..., got",
        ),
        (
            ["checkpoint={keep_best='eval/score', enable=false}"],
            "keep_best needs enable = true; remove it, or enable checkpoints",
        ),
        (
            ["checkpoint.keep_best='eval/score'"],
            "[checkpoint] keep_best is a metric of the validation, and [evaluation] is missing; add it",
        ),
        (["checkpoint.keep_latest_k=1"], "[checkpoint] keep_latest_k must be 0 (all) or >= 2, got 1"),
        (
            ["parallelism.data_parallel_shard_degree=0"],
            "[parallelism] data_parallel_shard_degree must be >= 1, or -1, got 0",
        ),
    ],
)
def test_inconsistent_tables_are_refused(write: Write, overrides: list[str], message: str) -> None:
    assert message in refusal(write, *overrides)


def test_optimal_token_baseline_needs_groups(write: Write) -> None:
    one = ["algorithm.advantage.name=optimal_token_baseline", "loop.samples_per_prompt=1"]
    assert "samples_per_prompt must be >= 2 for advantage 'optimal_token_baseline', got 1" in refusal(
        write, *one
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.kl=", "reference="],
        ["algorithm.kl.placement=reward", "algorithm.advantage.source=token_reward"],
        ["algorithm.kl.placement=advantage"],
        ["loop.samples_per_prompt=1", "algorithm.advantage.name=lab_single"],
        ["loop.minibatches=4", "parallelism.data_parallel_shard_degree=2"],
        ["algorithm.filter=[{name='lab_filter', key='lab_match'}]"],
        ["reward=[{name='lab_match'}, {name='lab_length', correct='lab_match'}]"],
        ["reward=[{name='lab_match'}, {name='lab_match', label='second'}]"],
        ["algorithm.correction=[{name='lab_correction'}]", "algorithm.denominator=kept"],
        ["algorithm.entropy={name='lab_entropy'}"],
        ["algorithm.old_logprob=sampler"],
        [CLIPPED.format("teacher_logprob"), "teacher={path='t'}"],
        [CLIPPED.format("candidate_ids"), "teacher={path='t', top_k=8}"],
        ["sampler.top_k=-1"],
        ["loop.kind=online"],
        ACTOR_CRITIC,
        [*ACTOR_CRITIC, "critic={path='models/other', warmup_steps=1, loss={name='value', clip=inf}}"],
        [CLIPPED.format("value"), "critic={}"],
        [*ACTOR_CRITIC, "critic={shared=true, loss={name='value', clip=inf}}"],
    ],
)
def test_consistent_tables_are_accepted(write: Write, overrides: list[str]) -> None:
    load(write(), overrides)


def test_critic_keeps_its_own_learning_rate(write: Write) -> None:
    critic = load(write(), [*ACTOR_CRITIC, "critic.optimizer.weight_decay=0.0"]).critic
    assert critic is not None
    assert (critic.optimizer.lr, critic.optimizer.weight_decay) == (1e-5, 0.0)
    assert critic.loss.clip == 0.2


def test_shared_critic_has_a_coefficient_and_no_optimizer_of_its_own(write: Write) -> None:
    experiment = load(write(), [*ACTOR_CRITIC, "critic.shared=true"])
    table = to_table(experiment)["critic"]
    assert (table["shared"], table["coefficient"]) == (True, 0.1)
    assert not {"optimizer", "lr_scheduler", "path"} & table.keys()
    assert Experiment.from_table(to_table(experiment)) == experiment


def test_final_value_is_computed_only_if_a_component_reads_it(write: Write) -> None:
    path = write()
    assert load(path, ACTOR_CRITIC).scored_keys()[0] == {"ref_logprob", "old_logprob", "value"}
    continued = load(path, [*ACTOR_CRITIC, "algorithm.advantage.bootstrap=truncated"])
    assert continued.scored_keys()[0] == {"ref_logprob", "old_logprob", "value", "final_value"}


def test_experiment_built_in_python_is_checked_too(write: Write) -> None:
    experiment = load(write())
    tables = {name: getattr(experiment, name) for name in Experiment.__dataclass_fields__}
    with pytest.raises(ConfigError, match="add a \\[reference\\] table"):
        Experiment(**{**tables, "reference": None})


def test_dataflow_nodes_are_in_stage_order_and_read_only_written_keys(write: Write) -> None:
    flow = load(write(), ["algorithm.correction=[{name='lab_correction'}]"]).dataflow()
    stages = [STAGES.index(actor.stage) for actor in flow]
    assert stages == sorted(stages)
    written: set[object] = set()
    for actor in flow:
        assert set(actor.reads) <= written
        written.update(actor.writes)
    assert {"loss_weight", "advantage", "correction_weight", "reward", ("rewards", "lab_match")} <= written


def test_dataflow_shows_the_writers_of_old_logprobs_and_baseline(write: Write) -> None:
    path = write()
    writers = {
        setting: [actor.name for actor in load(path, [*overrides]).dataflow() if key in actor.writes]
        for setting, key, overrides in (
            ("recompute", "old_logprob", []),
            ("sampler", "old_logprob", ["algorithm.old_logprob=sampler"]),
            ("greedy", "baseline_reward", [CLIPPED.format("baseline_reward")]),
            ("none", "baseline_reward", []),
        )
    }
    assert writers == {
        "recompute": ["policy"],
        "sampler": ["bypass mode"],
        "greedy": ["scored greedy responses"],
        "none": [],
    }


def test_scored_keys_exclude_unread_keys(write: Write) -> None:
    path = write()
    assert load(path).scored_keys() == (frozenset({"ref_logprob", "old_logprob"}), True)
    assert load(path, ["loop.epochs=2"]).scored_keys() == (frozenset({"ref_logprob", "old_logprob"}), False)
    assert load(path, ["loop.minibatches=2"]).scored_keys()[1] is False
    corrected = load(path, ["algorithm.correction=[{name='lab_correction'}]"])
    assert corrected.scored_keys() == (frozenset({"ref_logprob", "old_logprob"}), False)
    bare = load(path, ["algorithm.kl=", "reference=", "algorithm.loss.name=lab_other_loss"])
    assert bare.scored_keys() == (frozenset(), True)
    sampled = load(path, ["algorithm.old_logprob=sampler"])
    assert sampled.scored_keys() == (frozenset({"ref_logprob"}), False)
    taught = load(path, [CLIPPED.format("candidate_ids"), "teacher={path='t', top_k=8}"])
    assert taught.scored_keys() == (frozenset({"ref_logprob", "old_logprob", "candidate_ids"}), True)
    entropic = load(path, [CLIPPED.format("old_entropy")])
    assert entropic.scored_keys() == (frozenset({"ref_logprob", "old_logprob", "old_entropy"}), True)
