"""Reports of runs: files, trackers, live views, pages and figures."""
