"""Names of other frameworks and the corresponding keys of an experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["ALGORITHMS", "KEYS"]

KEYS: Mapping[str, str] = MappingProxyType(
    {
        "batch_size": "[loop] prompts_per_step",
        "beta": "[algorithm.kl] coefficient",
        "bf16": "[training] mixed_precision_param",
        "cliprange": "[algorithm.loss] clip_low",
        "epsilon": "[algorithm.loss] clip_low",
        "eval_steps": "[evaluation] interval",
        "gradient_accumulation_steps": "[training] max_tokens_per_microbatch",
        "gradient_clipping": "[training] max_norm",
        "init_kl_coef": "[algorithm.kl] coefficient",
        "kl_coef": "[algorithm.kl] coefficient",
        "learning_rate": "[optimizer] lr",
        "lr": "[optimizer] lr",
        "max_completion_length": "[sampler] max_response_tokens",
        "max_grad_norm": "[training] max_norm",
        "max_length": "[training] seq_len",
        "max_new_tokens": "[sampler] max_response_tokens",
        "max_response_length": "[sampler] max_response_tokens",
        "max_steps": "[loop] steps",
        "max_tokens": "[sampler] max_response_tokens",
        "model_name_or_path": "[model] path",
        "num_generations": "[loop] samples_per_prompt",
        "num_iterations": "[loop] epochs",
        "num_train_epochs": "[loop] steps",
        "output_dir": "[run] folder",
        "per_device_train_batch_size": "[training] max_tokens_per_microbatch",
        "ppo_epochs": "[loop] epochs",
        "ref_model": "[reference] path",
        "report_to": "[report] trackers",
        "save_steps": "[checkpoint] interval",
        "seed": "[run] seed",
        "seq_len": "[training] seq_len",
        "steps": "[loop] steps",
        "temperature": "[sampler] temperature",
        "total_steps": "[loop] steps",
        "train_batch_size": "[loop] prompts_per_step",
        "trackio": "[report] trackers",
        "wandb": "[report] trackers",
        "warmup_steps": "[lr_scheduler] warmup_steps",
        "weight_decay": "[optimizer] weight_decay",
    }
)
"""Key -> table and key that mean the same, for a table that does not know the key."""

ALGORITHMS = (
    "a2po",
    "cispo",
    "dapo",
    "dpo",
    "dppo",
    "dr_grpo",
    "grpo",
    "gspo",
    "kto",
    "luspo",
    "online_dpo",
    "opo",
    "ppo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "scalerl",
    "sft",
    "vapo",
    "wpo",
)
"""Algorithms of several components that a preset ``titanrl:algorithms/NAME.toml`` composes."""
