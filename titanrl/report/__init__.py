"""What a run leaves behind and shows while it runs."""
