"""More than one process or machine, by Ray: `--ray` of `mmaccel batch` and `mmaccel serve`."""
