"""The ops in torch's own: fast on a CPU, correct on every device."""
