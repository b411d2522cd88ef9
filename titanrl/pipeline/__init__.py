"""Several experiments one after the other, each on what earlier ones left: SFT, reward models, RL, data."""
