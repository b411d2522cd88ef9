"""The sampler `vllm`: a vLLM engine inside the trainer's process."""

from titanrl.components.samplers.vllm.sampler import CPU_HEAD_DIMS, VLLM

__all__ = ["CPU_HEAD_DIMS", "VLLM"]
