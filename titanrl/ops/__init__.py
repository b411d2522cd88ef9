"""Pure tensor functions: no state, no collective, no configuration."""
