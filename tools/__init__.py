"""Developer tools, not in the wheel: documentation generators, benchmark reports, the findings page."""
