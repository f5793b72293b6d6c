"""Linear layers of a few rows: the same products, by the way that was measured fastest, and only where that is safe."""

import copy
import importlib
import json
import pickle
from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import mmaccel
from mmaccel import vlm
from mmaccel.files import kept_choices
from mmaccel.kernels import choosing
from mmaccel.kernels import skinny_linear as function
from mmaccel.kernels.timing import Timing
from mmaccel.linears.packed import has_twin
from mmaccel.linears.skinny import SkinnyLinear, is_plain_linear, skinny_linears, with_skinny_linears
from mmaccel.testing.snapshot import snapshot

module = importlib.import_module("mmaccel.kernels.skinny_linear")
measured_way = module.way
OUT, IN = 512, 256  # just as large as has a choice


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_choices, "path", lambda: tmp_path / "choices.json")
    monkeypatch.setattr(module, "_found", {})
    measured_way.cache_clear()
    yield
    measured_way.cache_clear()


def forced(monkeypatch, name, calls=None):
    """One way for everything; counts what goes it."""

    def way(x, weight, bias):
        if calls is not None:
            calls.append(x.numel() // x.shape[-1])
        return original(x, weight, bias)

    original = module.WAYS[name]
    monkeypatch.setitem(module.WAYS, name, way)
    monkeypatch.setattr(module, "way", lambda *_: name)


def agrees(x, weight, bias):
    with torch.no_grad():
        expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        found = function(x, weight, bias)
    assert found.shape == expected.shape and found.is_contiguous()
    assert torch.allclose(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", module.WAYS)
@pytest.mark.parametrize("rows", (1, 2, 3, 7, 64))
@pytest.mark.parametrize("has_bias", (True, False))
def test_every_way_is_the_product(monkeypatch, name, rows, has_bias):
    calls = []
    forced(monkeypatch, name, calls)
    weight, bias = torch.randn(OUT, IN), torch.randn(OUT) if has_bias else None
    agrees(torch.randn(rows, IN), weight, bias)
    agrees(torch.randn(1, rows, IN), weight, bias)
    agrees(torch.randn(IN, rows).t(), weight, bias)  # strided
    agrees(torch.randn(rows, 2 * IN)[:, ::2], weight, bias)
    assert calls == [rows] * 4


def test_two_batch_axes(monkeypatch):
    forced(monkeypatch, "turned")
    agrees(torch.randn(3, 2, IN), torch.randn(OUT, IN), torch.randn(OUT))


LEFT_ALONE = {
    "no row": (torch.randn(0, IN), torch.randn(OUT, IN)),
    "many rows": (torch.randn(65, IN), torch.randn(OUT, IN)),
    "a small weight": (torch.randn(4, IN), torch.randn(OUT - 1, IN)),
    "half precision": (torch.randn(4, IN).bfloat16(), torch.randn(2 * OUT, IN).bfloat16()),
    "a gradient": (torch.randn(4, IN), torch.randn(OUT, IN, requires_grad=True)),
    "another kind of weight": (torch.randn(4, IN), torch.randn(OUT, IN).to_sparse()),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_what_torch_computes_as_ever(monkeypatch, case):
    forced(monkeypatch, "turned", calls := [])
    x, weight = LEFT_ALONE[case]
    assert torch.equal(function(x, weight), F.linear(x, weight)) and not calls


def test_gradients_and_autocast_are_kept(monkeypatch):
    forced(monkeypatch, "onednn", calls := [])
    x, weight = torch.randn(4, IN, requires_grad=True), torch.randn(OUT, IN)
    function(x, weight).sum().backward()
    assert torch.allclose(x.grad, weight.sum(0).expand(4, IN), atol=1e-4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert function(x, weight).dtype == torch.bfloat16
    assert not calls


def test_a_bias_that_learns_alone_gets_its_gradient(monkeypatch):
    """oneDNN has none for it."""
    forced(monkeypatch, "onednn", calls := [])
    x, weight, bias = torch.randn(4, IN), torch.randn(OUT, IN), torch.zeros(OUT, requires_grad=True)
    function(x, weight, bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((OUT,), 4.0)) and not calls


# ---------------------------------------------------------------- which way


class Timings:
    """What is measured, in place of a clock."""

    def __init__(self, monkeypatch, fast, quiet=True):
        self.fast, self.quiet, self.measured = fast, quiet, 0
        monkeypatch.setattr(choosing, "fastest", self)

    def __call__(self, runs, device):
        self.measured += 1
        names = [name for run in runs for name, way in module.WAYS.items() if way is run.args[0]]
        for run in runs:
            run()
        return Timing(tuple(1.0 if name == self.fast else 2.0 for name in names), self.quiet)


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch):
    monkeypatch.setattr(module, "MEASURED_BYTES", 1 << 20)


def test_it_is_measured_once_and_kept(monkeypatch):
    timings = Timings(monkeypatch, "turned")
    assert [module.way(4, 576, 1) for _ in range(2)] == ["turned"] * 2 and timings.measured == 1
    module.way.cache_clear()  # another process
    assert module.way(4, 576, 1) == "turned" and timings.measured == 1
    (choices,) = json.loads(kept_choices.path().read_text()).values()
    assert choices == {"linear layers of 4 rows, 576 columns": "turned"}


def test_other_columns_and_other_rows_are_measured_for_themselves(monkeypatch):
    timings = Timings(monkeypatch, "onednn")
    assert module.way(4, 896, 1) == module.way(8, 576, 1) == module.way(4, 576, 1) == "onednn"
    assert timings.measured == 3


@pytest.mark.parametrize(
    ("columns", "measured"),
    ((288, 576), (735, 576), (737, 896), (1024, 896), (1536, 1280), (1700, 2048), (18944, 4096)),
)
def test_columns_stand_for_those_near_them(monkeypatch, columns, measured):
    asked = []
    monkeypatch.setattr(module, "way", lambda *given: asked.append(given[:2]) or "plain")
    weight = torch.randn(module.LEAST_BYTES // 4 // columns + 1, columns)
    module.skinny_linear(torch.randn(1, columns), weight)
    assert asked == [(1, measured)]


def test_where_the_plain_product_is_fastest_nothing_else_is_looked_at_again(monkeypatch):
    forced(monkeypatch, "plain")
    x, weight = torch.randn(2, IN), torch.randn(OUT, IN)
    expected = function(x, weight)
    monkeypatch.setattr(module, "suits", None)
    assert torch.equal(function(x, weight), expected)


def test_all_is_measured_before_something_is_timed(monkeypatch):
    timings = Timings(monkeypatch, "turned")
    module.measure()
    assert timings.measured == len(module.COLUMNS) * len(module.ROWS)
    x, weight = torch.randn(5, 576), torch.randn(1536, 576)
    module.skinny_linear(x, weight)
    module.measure()
    assert timings.measured == len(module.COLUMNS) * len(module.ROWS)


def test_a_tie_and_a_busy_machine_leave_the_plain_product(monkeypatch):
    Timings(monkeypatch, "nothing")
    assert module.way(4, 576, 1) == "plain"
    Timings(monkeypatch, "turned", quiet=False)
    assert module.way(8, 576, 1) == "plain"


def test_what_this_torch_cannot_do_is_no_way(monkeypatch):
    def broken(*_):
        raise RuntimeError("no such operator")

    timings = Timings(monkeypatch, "onednn")
    monkeypatch.setitem(module.WAYS, "onednn", broken)
    assert module.way(4, 576, 1) == "plain" and timings.measured == 1


def test_really_measured(monkeypatch):
    assert module.way(4, 576, torch.get_num_threads()) in module.WAYS


# ---------------------------------------------------------------- in a model


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(IN, OUT), nn.GELU(), nn.Linear(OUT, IN), nn.Linear(IN, 8)).eval()


@torch.no_grad()
def test_the_layers_of_a_module_and_without_a_trace(monkeypatch):
    forced(monkeypatch, "turned", calls := [])
    layers, x = network(), torch.randn(3, IN)
    before, expected = snapshot(layers), layers(x)
    with ExitStack() as stack:
        skinny_linears(stack, layers)
        assert torch.allclose(layers(x), expected, atol=1e-5) and calls == [3, 3]
        assert torch.allclose(layers(x[:1]), expected[:1], atol=1e-5) and calls == [3, 3, 1, 1]
    assert snapshot(layers) == before and torch.equal(layers(x), expected)


@torch.no_grad()
@pytest.mark.parametrize("way", ("in place", "wrapped"))
def test_layers_of_a_compiled_part_are_left_to_it(monkeypatch, way):
    """Else each call would compile it anew."""
    forced(monkeypatch, "turned", calls := [])
    part, x = network(), torch.randn(3, IN)
    if way == "in place":
        part.compile(backend="eager")
    else:
        part = torch.compile(part, backend="eager")
    with ExitStack() as stack:
        skinny_linears(stack, layers := nn.Sequential(part, nn.Linear(8, 8)))
        layers(x)
        assert not calls and not any("forward" in vars(each) for each in layers.modules() if type(each) is nn.Linear)


def test_what_a_model_needs_is_measured_before_its_passes(monkeypatch):
    timings = Timings(monkeypatch, "turned")
    with ExitStack() as stack:
        skinny_linears(stack, layers := network())
        assert timings.measured == len(module.ROWS)
        with torch.no_grad():
            layers(torch.randn(5, IN))
    assert timings.measured == len(module.ROWS)


@torch.no_grad()
def test_a_layer_that_something_else_holds_is_left_to_it(monkeypatch):
    forced(monkeypatch, "turned", calls := [])
    layers = network()
    layers[0].forward = lambda x: torch.zeros(len(x), OUT)
    with ExitStack() as stack:
        skinny_linears(stack, layers)
        layers(torch.randn(3, IN))
    assert len(calls) == 1 and "forward" in vars(layers[0])


@torch.no_grad()
@pytest.mark.parametrize("copied", (copy.deepcopy, lambda layers: pickle.loads(pickle.dumps(layers))))  # noqa: S301
def test_layers_of_a_copy_are_taken_hold_of_too(monkeypatch, copied):
    """It was made while a session had those of the other one."""
    forced(monkeypatch, "turned", calls := [])
    layers, x = network(), torch.randn(3, IN)
    with ExitStack() as stack:
        skinny_linears(stack, layers)
        other = copied(layers)
        assert all(map(is_plain_linear, (layers[0], other[0])))
    before, expected = snapshot(other), other(x)
    assert has_twin(other) and not calls
    with ExitStack() as stack:
        skinny_linears(stack, other)
        assert torch.allclose(other(x), expected, atol=1e-5) and calls == [3, 3]
        twin = with_skinny_linears(other)
        assert type(twin[0]) is SkinnyLinear and "forward" not in {*vars(twin[0]), *vars(twin[3])}
        assert torch.allclose(twin(x), expected, atol=1e-5) and calls == [3, 3] * 2
    assert snapshot(other) == before


@torch.no_grad()
def test_a_twin_shares_the_weights(monkeypatch):
    forced(monkeypatch, "turned", calls := [])
    layers, x = network(), torch.randn(3, IN)
    twin = with_skinny_linears(layers)
    assert type(twin[0]) is SkinnyLinear and type(twin[3]) is type(layers[0]) is nn.Linear
    assert twin[0].weight is layers[0].weight and torch.allclose(twin(x), layers(x), atol=1e-5)
    layers[0].weight.mul_(2)
    assert torch.allclose(twin(x), layers(x), atol=1e-5) and calls == [3, 3] * 2
    assert list(twin.state_dict()) == list(layers.state_dict())
    assert torch.allclose(copy.deepcopy(twin)(x), layers(x), atol=1e-5)
    small = nn.Linear(8, 8)
    twin, x = with_skinny_linears(small), torch.randn(3, 8)
    assert twin is not small and twin.weight is small.weight and torch.equal(twin(x), small(x))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=4096,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).eval()
    model.lm_head.weight.data.mul_(50)  # so that it is sure of something, and guesses are worth a pass
    return model


@pytest.mark.parametrize("batch", (1, 3))
def test_drafts_are_verified_so(monkeypatch, model, batch):
    forced(monkeypatch, "turned", calls := [])
    ids = torch.randint(1, 4096, (batch, 4)).repeat(1, 4)
    plain = model.generate(input_ids=ids, max_new_tokens=12, do_sample=False)
    assert not calls
    with mmaccel.accelerate(model, vlm.TokenRecycling(always=True)) as fast:
        for _ in range(2):  # the first text teaches what is drafted
            assert torch.equal(fast.generate(input_ids=ids, max_new_tokens=12, do_sample=False), plain)
    assert calls, "the head has a faster way"
    calls.clear()
    with mmaccel.accelerate(model, vlm.TokenRecycling(block=0)) as fast:
        assert torch.equal(fast.generate(input_ids=ids, max_new_tokens=12, do_sample=False), plain)
    assert torch.equal(model.generate(input_ids=ids, max_new_tokens=12, do_sample=False), plain) and not calls
