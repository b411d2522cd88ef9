"""Developer tools, which are not in the wheel. Each runs as ``python -m tools.NAME``.

pages: write docs/components, docs/algorithms.md and docs/config.md from the sources.
cli_page: write docs/cli.md from the commands' help and docs/dataflow.svg from the quickstart.
findings: write docs/findings.md and docs/findings.png from the results of the published ablations.
bench: compare benchmark results with the stored ratios; write docs/performance.md and docs/performance.png.
"""
