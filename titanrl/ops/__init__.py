"""Pure functions, most of them of tensors: no state, no collective, no configuration."""
