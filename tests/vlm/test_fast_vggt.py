"""Merging tokens around the attention of an encoder over many views."""

import pytest
import torch
from torch import nn
from transformers import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipEncoder

from mmaccel.errors import SettingError
from mmaccel.vlm import FastVGGT


@pytest.fixture(scope="module")
def encoder():
    torch.manual_seed(0)
    config = SiglipVisionConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2)
    return SiglipEncoder(config).eval()


def views(batch, frames, length, alike=0.0):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(batch, frames, length, 16, generator=draw)
    x = alike * x[:, :1] + (1 - alike) * x
    return x.flatten(1, 2)


def forward(encoder, x):
    with torch.no_grad():
        return encoder(inputs_embeds=x).last_hidden_state


def attentions(encoder):
    return [layer.self_attn for layer in encoder.layers]


def state(module):
    return [
        (name, set(vars(m)), [len(v) for v in vars(m).values() if isinstance(v, dict)])
        for name, m in module.named_modules()
    ]


def test_nothing_merged_is_bit_identical(encoder):
    x = views(2, 3, 18)
    with FastVGGT(frames=3, special=2, merge=0.0).on(attentions(encoder)):
        inside = forward(encoder, x)
    assert torch.equal(inside, forward(encoder, x))


@pytest.mark.parametrize("merge", (0.3, 0.9))
def test_attention_sees_fewer_tokens_and_leaves_no_trace(encoder, merge):
    x, seen, before = views(2, 3, 18, 0.7), [], state(encoder)
    plain = forward(encoder, x)
    handle = encoder.layers[1].self_attn.q_proj.register_forward_hook(lambda m, a, out: seen.append(out.shape[1]))
    with FastVGGT(frames=3, special=2, merge=merge).on(attentions(encoder)[1:]):
        merged = forward(encoder, x)
    forward(encoder, x)
    handle.remove()
    most = 54 - (18 + 2 * (2 + 4))  # the first view, special tokens and cells stay
    assert seen == [54 - min(most, int(54 * merge)), 54]
    assert merged.shape == plain.shape and not torch.equal(merged, plain)
    assert state(encoder) == before and torch.equal(forward(encoder, x), plain)


def test_an_exception_leaves_no_trace(encoder):
    before, x = state(encoder), views(1, 3, 18)
    with pytest.raises(SettingError, match="54 tokens are not 5 views"), FastVGGT(frames=5).on(attentions(encoder)):
        forward(encoder, x)
    mask = torch.zeros(1, 1, 54, 54)
    with pytest.raises(SettingError, match="mask"), FastVGGT(frames=3, special=2).on(attentions(encoder)):
        encoder(inputs_embeds=x, attention_mask=mask)
    assert state(encoder) == before


def test_equal_views_stay_equal(encoder):
    x = views(1, 4, 16, alike=1.0)
    with FastVGGT(frames=4, merge=0.9).on(attentions(encoder)):
        merged = forward(encoder, x)
    together = merged.unflatten(1, (4, 16))
    torch.testing.assert_close(together[:, 1:], together[:, :1].expand(-1, 3, -1, -1))


def naive(tokens, merger):
    """Rows of plain tensors: who stands for whom, and the means."""
    length, per = len(tokens), len(tokens) // merger.frames
    rows, columns = merger.grid
    target, source = [], []
    for i in range(length):
        place = i % per - merger.special
        corner = place < 0 or (place // columns % 2 == 0 and place % columns % 2 == 0)
        (target if i < per or corner else source).append(i)
    cosine = {(i, j): float(torch.cosine_similarity(tokens[i], tokens[j], dim=0)) for i in source for j in target}
    partner = {i: max(target, key=lambda j, i=i: cosine[i, j]) for i in source}
    gone = sorted(source, key=lambda i: -cosine[i, partner[i]])[: int(length * merger.merge)]
    groups = {i: [i] for i in range(length) if i not in gone}
    for i in gone:
        groups[partner[i]].append(i)
    return groups


@pytest.mark.parametrize(("grid", "special"), (((4, 4), 0), ((3, 5), 1), ((1, 6), 2), ((2, 2), 0)))
@pytest.mark.parametrize("merge", (0.0, 0.1, 0.5, 1.0))
def test_merger(grid, special, merge):
    merger = FastVGGT(4, special, merge, grid)
    x = views(2, 4, special + grid[0] * grid[1], 0.5)
    match = merger.match(x)
    merged = match.merge(x)
    back = match.unmerge(merged)
    for row in range(2):
        groups = naive(x[row].double(), merger)
        assert match.kept[row].tolist() == sorted(groups)
        for at, first in enumerate(sorted(groups)):
            torch.testing.assert_close(merged[row, at], x[row, groups[first]].mean(0))
            assert all(torch.equal(back[row, i], merged[row, at]) for i in groups[first])
    if not merge:
        assert torch.equal(merged, x) and torch.equal(back, x)
    assert match.merge(x.half()).dtype == torch.float16


def test_positions_go_with_their_tokens():
    class Attention(nn.Module):
        def forward(self, x, pos):
            self.seen = pos
            return x + pos

    module, x = Attention(), views(2, 2, 4)
    pos = torch.arange(8.0)[None, :, None]
    merger = FastVGGT(frames=2, merge=1.0)
    with merger.on([module], positions=("pos",)):
        out = module(x, pos=pos)
    assert module.seen[0, :, 0].tolist() == merger.match(x).kept[0].tolist() == [0, 1, 2, 3, 4]
    assert out.shape == x.shape


@pytest.mark.parametrize("bad", ({"frames": 0}, {"special": -1}, {"merge": 1.1}, {"grid": (0, 3)}), ids=str)
def test_bad_settings(bad):
    (name,) = bad
    with pytest.raises(SettingError, match=rf"^FastVGGT\({name}=.*must be"):
        FastVGGT(**{"frames": 2, **bad})
