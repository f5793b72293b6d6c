"""Tokens that queries may be limited to."""

import torch


def select(lengths, heads, count, chosen):
    """Sorted random tokens of each head, the newest `count` included, padded with -1."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for length in lengths:
        for _ in range(heads):
            older = torch.randperm(length - count, generator=generator)[: chosen - count].sort().values
            tokens = torch.cat([older, torch.arange(length - count, length)])
            rows.append(torch.nn.functional.pad(tokens, (0, chosen - len(tokens)), value=-1))
    return torch.stack(rows).view(len(lengths), heads, chosen)
