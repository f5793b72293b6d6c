"""Packed weights give the same products, follow the weights they were made of, and leave modules as they are."""

from contextlib import ExitStack

import pytest
import torch
from quantized_weight import quantize

from mmaccel import private
from mmaccel.kernels.skinny_linear import suits
from mmaccel.linears.packed import PackedLinear, PackedMatrix, with_packed_linears
from mmaccel.linears.skinny import SkinnyLinear, is_plain_linear
from mmaccel.patching import attention_layers, intercept_attention
from mmaccel.testing.contract import snapshot
from mmaccel.vlm import examples


@pytest.fixture
def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(48, 96), torch.nn.GELU(), torch.nn.Linear(96, 5, bias=False))


@pytest.mark.parametrize("shape", ((48,), (1, 48), (2, 3, 48), (0, 48), (2, 40, 48)))
@torch.no_grad()
def test_the_same_products(layers, shape):
    x = torch.randn(shape)
    assert torch.allclose(with_packed_linears(layers)(x), layers(x), atol=1e-6)
    strided = torch.randn(48, 7).t()
    assert torch.allclose(with_packed_linears(layers)(strided), layers(strided), atol=1e-6)


@torch.no_grad()
def test_a_twin_shares_all_else_and_changes_nothing(layers):
    before = snapshot(layers)
    twin = with_packed_linears(layers)
    assert snapshot(layers) == before and type(layers[0]) is torch.nn.Linear
    assert isinstance(twin[0], PackedLinear) and twin[1] is not layers[1] and twin[0].weight is layers[0].weight
    assert twin[0].bias is layers[0].bias and twin[2].bias is None


@torch.no_grad()
def test_a_layer_of_a_skinny_twin_is_packed_as_the_one_that_it_stands_for(layers):
    skinny, x = torch.nn.Sequential(SkinnyLinear(layers[0])), torch.randn(3, 48)
    twin = with_packed_linears(skinny)
    assert isinstance(twin[0], PackedLinear) and twin[0].weight is layers[0].weight
    assert torch.allclose(twin(x), layers[0](x), atol=1e-6) and type(skinny[0]) is SkinnyLinear


@torch.no_grad()
def test_changed_weights_are_seen(layers):
    twin, x = with_packed_linears(layers), torch.randn(3, 48)
    layers[0].weight.mul_(2)
    assert torch.allclose(twin(x), layers(x), atol=1e-6)
    layers[0].weight = torch.nn.Parameter(torch.randn(96, 48))
    assert torch.allclose(twin(x), layers(x), atol=1e-4)
    for _ in range(20):  # where a weight stood, the next one may come to stand
        layers[0].weight = torch.nn.Parameter(torch.randn(96, 48))
        assert torch.allclose(twin(x), layers(x), atol=1e-4)
    layers.load_state_dict({name: torch.randn_like(weight) for name, weight in layers.state_dict().items()})
    assert torch.allclose(twin(x), layers(x), atol=1e-3)
    layers.bfloat16()
    assert torch.equal(twin(x.bfloat16()), layers(x.bfloat16()))
    layers.float()
    assert torch.allclose(twin(x), layers(x), atol=1e-3)


def test_gradients_and_autocast_take_the_plain_way(layers):
    twin, x = with_packed_linears(layers), torch.randn(3, 48)
    twin(x).sum().backward()
    assert layers[0].weight.grad is not None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert twin(x).dtype == torch.bfloat16 and torch.equal(twin(x), layers(x))


@torch.inference_mode()
def test_weights_made_in_inference_mode():
    linear, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    assert torch.allclose(with_packed_linears(linear)(x), linear(x), atol=1e-6)


@torch.no_grad()
def test_without_onednn(layers, monkeypatch):
    assert private.can_pack(torch.ones(1)) == torch.backends.mkldnn.is_available(), "torch's private ops are gone"
    monkeypatch.setattr(private, "_LINEAR", None)
    x = torch.randn(3, 48)
    assert torch.equal(with_packed_linears(layers)(x), layers(x))


@torch.no_grad()
def test_a_view_of_a_weight():
    conv, x = torch.nn.Conv1d(4, 6, 3), torch.randn(2, 12)
    matrix = PackedMatrix(conv, lambda weight: weight.flatten(1))
    assert torch.allclose(matrix(x, conv.bias), conv(x.view(2, 4, 3))[..., 0], atol=1e-6)


@torch.no_grad()
def test_a_matrix_is_made_once_in_other_types_too():
    made = []
    conv, x = torch.nn.Conv1d(4, 6, 3).bfloat16(), torch.randn(2, 12).bfloat16()
    matrix = PackedMatrix(conv, lambda weight: made.append(1) or weight.flatten(1))
    assert torch.equal(matrix(x), torch.nn.functional.linear(x, conv.weight.flatten(1))) and len(made) == 1
    matrix(x)
    assert len(made) == 1
    conv.weight.mul_(2)
    assert torch.equal(matrix(x), torch.nn.functional.linear(x, conv.weight.flatten(1))) and len(made) == 2


@torch.no_grad()
def test_a_packed_weight_is_packed_once_until_it_changes(monkeypatch):
    packed = []
    monkeypatch.setattr(private, "can_pack", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(private, "pack_weight", lambda matrix: packed.append(1) or matrix)
    monkeypatch.setattr(private, "onednn_linear", torch.nn.functional.linear)
    linear, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    matrix = PackedMatrix(linear)
    assert len(packed) == 1, "before the first product, which is timed"
    for _ in range(2):
        assert torch.equal(matrix(x, linear.bias), linear(x)) and len(packed) == 1
    linear.weight.mul_(2)
    assert torch.equal(matrix(x, linear.bias), linear(x)) and len(packed) == 2


def test_inputs_that_want_gradients_get_them():
    linear = torch.nn.Linear(4, 3).requires_grad_(False)
    x = torch.randn(2, 4, requires_grad=True)
    PackedLinear(linear)(x).sum().backward()
    assert torch.allclose(x.grad, linear.weight.sum(0).expand(2, 4))


@pytest.mark.parametrize("place", ("register_forward_hook", "register_forward_pre_hook"))
@torch.no_grad()
def test_a_layer_with_a_hook_keeps_it(layers, place):
    seen, x = [], torch.randn(3, 48)
    getattr(layers[0], place)(lambda layer, *_: seen.append(layer))
    twin = with_packed_linears(layers)
    assert torch.allclose(twin(x), layers(x), atol=1e-6) and len(seen) == 2
    assert seen[0] is twin[0] is not layers[0] and isinstance(twin[2], PackedLinear)


@torch.no_grad()
def test_a_quantized_layer_is_not_packed(layers):
    x = torch.randn(3, 48)
    expected = layers(x)
    quantize(layers[0])
    twin = with_packed_linears(layers)
    assert torch.allclose(twin(x), expected, atol=1e-6)
    assert type(twin[0]) is torch.nn.Linear and isinstance(twin[2], PackedLinear)
    assert not is_plain_linear(layers[0]) and is_plain_linear(layers[2])
    assert not private.can_pack(layers[0].weight) and not suits(layers[0].weight)


@torch.no_grad()
def test_a_layer_that_is_quantized_after_it_was_packed_runs_as_it_is(layers):
    twin, x = with_packed_linears(layers), torch.randn(3, 48)
    expected = layers(x)
    quantize(layers[0])
    assert torch.allclose(twin(x), expected, atol=1e-6)


@pytest.mark.parametrize("times", (1, 2))
@torch.no_grad()
def test_a_twin_of_a_model_whose_attention_is_routed_attends_by_itself(times):
    model, arguments = examples.llama()
    ids, routed = arguments(1)["input_ids"], []

    def attend(original, *given, **more):
        routed.append(1)
        return original(*given, **more)

    expected = with_packed_linears(model)(ids).logits
    with ExitStack() as stack:
        for _ in range(times):
            intercept_attention(stack, attention_layers(model), attend)
        twin = with_packed_linears(model)
        assert torch.equal(twin(ids).logits, expected) and not routed, "while the session lasts"
        assert torch.allclose(model(ids).logits, expected, atol=1e-4) and routed
    assert torch.equal(twin(ids).logits, expected), "and after it"


def test_layers_of_other_classes_and_compiled_ones_stay_as_they_are(monkeypatch):
    class Own(torch.nn.Linear):
        pass

    module = torch.nn.Sequential(Own(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))
    module.register_module("absent", None)
    monkeypatch.setattr(private, "is_compiled", lambda part: part is module[1])
    twin = with_packed_linears(module)
    assert type(twin[0]) is Own and twin[1] is module[1] and twin._modules["absent"] is None
