"""The sampler `torch`: decoding with a key-value cache on the trainer's own modules."""

from titanrl.components.samplers.torch.sampler import Torch, TorchSampler

__all__ = ["Torch", "TorchSampler"]
