"""What tells models apart whose caches must not be mixed up."""

import copy
import functools

import numpy as np
import pytest
import torch
from torch.nn import functional

import mmaccel
from mmaccel import vlm
from mmaccel.cache.hook_state import why_incomparable
from mmaccel.cache.model_hash import model_hash
from mmaccel.vlm import examples


@pytest.fixture
def model() -> torch.nn.Module:
    found, _ = examples.llama()
    return found


class ByteLinear(torch.nn.Module):
    """A linear layer whose weights are buffers, as those of GPTQ and AWQ."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.register_buffer("qweight", (linear.weight.detach() * 100).round().to(torch.int8))


class Packed(torch.Tensor):
    """A weight made of two tensors, which refuses to be cut, as torchao's do."""

    @staticmethod
    def __new__(cls, qdata: torch.Tensor, scale: torch.Tensor, block_size: int) -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(cls, qdata.shape, dtype=scale.dtype)

    def __init__(self, qdata: torch.Tensor, scale: torch.Tensor, block_size: int) -> None:
        self.qdata, self.scale, self.block_size = qdata, scale, block_size

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, int]]:
        return ["qdata", "scale"], {"block_size": self.block_size}

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].qdata, args[0].scale, args[0].block_size)
        raise NotImplementedError(f"Packed dispatch: {func}")


def test_a_copy_has_the_same_hash_and_keeps_it(model: torch.nn.Module) -> None:
    assert model_hash(model) == model_hash(model) == model_hash(copy.deepcopy(model))


def test_a_device_is_read_once_for_all_weights(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model has hundreds, and each read waits for what the device is doing."""
    model_hash(model)
    read, plain = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: read.append(1) or plain(tensor))
    model_hash(model)
    assert len(read) == 1


def test_a_single_row_tells_models_apart(model: torch.nn.Module) -> None:
    before = model_hash(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[17, 3] += 1
    assert model_hash(model) != before


def test_a_merge_into_data_tells_models_apart(model: torch.nn.Module) -> None:
    before = model_hash(model)
    model.lm_head.weight.data.mul_(1.5)
    assert model_hash(model) != before


def test_weights_that_are_buffers_count(model: torch.nn.Module) -> None:
    layer = model.model.layers[0].self_attn
    layer.q_proj = ByteLinear(layer.q_proj)
    before = model_hash(model)
    layer.q_proj.qweight[5, 5] += 1
    assert model_hash(model) != before


@pytest.mark.parametrize(
    "other", ({"qdata": torch.zeros(8, 8, dtype=torch.int8)}, {"scale": torch.zeros(8, 1)}, {"block_size": 4})
)
def test_weights_made_of_tensors_count_with_all_of_them(model: torch.nn.Module, other: dict) -> None:
    parts = {"qdata": torch.ones(8, 8, dtype=torch.int8), "scale": torch.ones(8, 1), "block_size": 8}
    hashes = []
    for each in (parts, parts, {**parts, **other}):
        model.lm_head.weight = torch.nn.Parameter(Packed(**each), requires_grad=False)
        hashes.append(model_hash(model))
    assert hashes[0] == hashes[1] != hashes[2]
    parts["qdata"][7, 7] += 1
    model.lm_head.weight = torch.nn.Parameter(Packed(**parts), requires_grad=False)
    assert model_hash(model) != hashes[0]


def test_weights_that_hold_functions_are_told_apart_by_nothing(model: torch.nn.Module) -> None:
    """Whose address is another one in each process."""
    held = Packed(torch.ones(8, 8, dtype=torch.int8), torch.ones(8, 1), block_size=lambda values: values)
    model.lm_head.weight = torch.nn.Parameter(held, requires_grad=False)
    with pytest.raises(ValueError, match=r"lm_head\.weight cannot be told from others by"):
        model_hash(model)


def test_packed_weights_count(model: torch.nn.Module) -> None:
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].mlp.down_proj.weight.mul_(-1)
    packed = [torch.ao.quantization.quantize_dynamic(each, {torch.nn.Linear}) for each in (model, model, other)]
    first, again, different = (model_hash(each) for each in packed)
    assert first == again != different


class Scales:
    """What bitsandbytes keeps beside a weight in 4 bits."""

    def __init__(self, scale: float) -> None:
        self.absmax = torch.full((4,), scale)

    def as_dict(self) -> dict[str, object]:
        return {"absmax": self.absmax, "blocksize": 64, "shape": (8, 8)}


class FourBits(torch.nn.Linear):
    """As a layer of bitsandbytes, whose state lays the weight back that its first pass on a CPU laid out anew."""

    def _save_to_state_dict(self, *_: object) -> None:
        raise AssertionError("its state was asked for, which changes it")


def in_four_bits(model: torch.nn.Module, scale: float) -> torch.nn.Parameter:
    layer = model.model.layers[0].mlp.down_proj
    layer.__class__ = FourBits
    layer.weight = torch.nn.Parameter(torch.arange(32, dtype=torch.uint8)[:, None], requires_grad=False)
    layer.weight.quant_state = Scales(scale)
    return layer.weight


def test_weights_in_four_bits_count_with_their_scales_and_are_looked_at_once(model: torch.nn.Module) -> None:
    other = copy.deepcopy(model)
    weight, _ = in_four_bits(model, 1.0), in_four_bits(other, 2.0)
    first = model_hash(model)
    weight.data, weight.quant_state = weight.data.view(4, 8).flip(0), Scales(1.5)  # as for a CPU
    assert model_hash(model) == first != model_hash(other)


def test_rows_that_change_places_tell_models_apart(model: torch.nn.Module) -> None:
    before = model_hash(model)
    with torch.no_grad():
        weight = model.get_input_embeddings().weight
        weight[[7, 11]] = weight[[11, 7]]
    assert model_hash(model) != before


def test_signs_that_change_in_pairs_tell_models_apart(model: torch.nn.Module) -> None:
    before = model_hash(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[7, 1:5:2] *= -1
    assert model_hash(model) != before


@pytest.mark.parametrize("kind", ("part of another", "made in inference", "sparse", "conjugate", "odd", "empty"))
def test_weights_of_every_kind_are_hashed(model: torch.nn.Module, kind: str) -> None:
    layer = model.model.layers[0]
    if kind == "part of another":
        layer.register_buffer("more", torch.arange(9, dtype=torch.float32)[1:])
    elif kind == "made in inference":
        with torch.inference_mode():
            layer.register_buffer("more", torch.ones(3, 4))
    elif kind == "sparse":
        layer.register_buffer("more", torch.eye(3).to_sparse())
    elif kind == "conjugate":
        layer.register_buffer("more", torch.tensor([1 + 2j]).conj())
    else:
        layer.register_buffer("more", torch.ones(3 if kind == "odd" else 0, 5, dtype=torch.bfloat16))
    first = model_hash(model)
    assert first == model_hash(model)
    layer.more = torch.zeros(2)
    assert model_hash(model) != first


def test_what_a_call_makes_is_no_weight(model: torch.nn.Module) -> None:
    before = model_hash(model)
    model.model.register_buffer("places", torch.arange(7), persistent=False)
    with_places = model_hash(model)
    assert with_places == before


def test_other_rotary_frequencies_make_another_model(model: torch.nn.Module) -> None:
    """Models whose calls change their own, by the length of a prompt, have nothing stored: see `why_unstorable`."""
    before = model_hash(model)
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq * 2
    assert model_hash(model) != before


def test_what_changes_the_keys_of_a_model_makes_another_one(model: torch.nn.Module) -> None:
    before = model_hash(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert model_hash(model) != before
    steering = model.model.layers[1].register_forward_hook(lambda module, args, output: output)
    assert model_hash(model) != before
    steering.remove()
    embedding = model.get_input_embeddings().register_forward_hook({}.setdefault)  # a function without a module
    assert "builtin" in why_incomparable(model)
    embedding.remove()
    counting = model.register_forward_hook(lambda *_: None)  # sees the whole model, and changes no part of it
    assert model_hash(model) == before
    counting.remove()


def test_another_attention_makes_another_model(model: torch.nn.Module) -> None:
    """That of a kernel may round, or leave out, what others do not."""
    before = model_hash(model)
    model.set_attn_implementation("eager")
    assert model_hash(model) != before
    model.set_attn_implementation("sdpa")
    assert model_hash(model) == before
    found, usual = set(), model.config
    for layer in model.model.layers:  # one at a time
        layer.self_attn.config = other = copy.deepcopy(usual)
        other._attn_implementation = "eager"
        found.add(model_hash(model))
        layer.self_attn.config = usual
    assert len(found) == len(model.model.layers) > 1 and model_hash(model) == before
    with mmaccel.accelerate(model, vlm.SparsePrefill()):  # which goes through another one only within its own calls
        assert model_hash(model) == before


@pytest.mark.parametrize("fused", (False, True))
def test_a_step_of_an_optimizer_tells_models_apart(model: torch.nn.Module, fused: bool) -> None:
    before = model_hash(model)
    weight = model.get_input_embeddings().weight.requires_grad_(True)
    optimizer = torch.optim.AdamW([weight], fused=fused, weight_decay=0.0)
    model(torch.tensor([[17, 18]])).logits.sum().backward()  # these two rows alone
    optimizer.step()
    assert model_hash(model) != before


class Steering:
    """A hook with a direction of its own."""

    def __init__(self, direction: torch.Tensor) -> None:
        self.direction = direction

    def __call__(self, module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        return output + self.direction

    def method(self, module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        return self(module, args, output)


def by_partial(module: torch.nn.Module, args: object, output: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    return output + direction


def by_closure(direction: torch.Tensor):
    def inner(output: torch.Tensor) -> torch.Tensor:
        return output + direction

    return lambda module, args, output: inner(output)


KINDS = {
    "partial": lambda direction: functools.partial(by_partial, direction=direction),
    "closure": by_closure,
    "default": lambda direction: lambda module, args, output, added=direction: output + added,
    "object": Steering,
    "method": lambda direction: Steering(direction).method,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_hook_carries_tells_models_apart(model: torch.nn.Module, kind: str) -> None:
    found = []
    for value in (1.0, 1.0, 2.0):
        handle = model.model.layers[0].mlp.register_forward_hook(KINDS[kind](torch.full((32,), value)))
        found.append(model_hash(model))
        handle.remove()
    assert found[0] == found[1] != found[2]


DIRECTION = torch.ones(32)


def test_a_global_that_a_hook_reads_tells_models_apart(model: torch.nn.Module, monkeypatch) -> None:
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: output + DIRECTION)
    before = model_hash(model)
    assert model_hash(model) == before
    monkeypatch.setitem(globals(), "DIRECTION", torch.zeros(32))
    assert model_hash(model) != before


def test_the_code_of_a_hook_tells_models_apart(model: torch.nn.Module) -> None:
    found = []
    for hook in (lambda module, args, output: output * 1.5, lambda module, args, output: output * 2):
        handle = model.model.layers[0].mlp.register_forward_hook(hook)
        found.append(model_hash(model))
        handle.remove()
    assert found[0] != found[1]


@functools.cache
def remembered(size: int) -> torch.Tensor:
    return torch.ones(size)


def of_many_kinds():
    import math

    kept = {"device": torch.device("cpu"), "type": torch.float32, "number": np.float32(2), "names": {"a", "b"}}

    def hook(module: torch.nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        first = output[..., :1] * math.pi * kept["number"]
        return functional.relu(first + remembered(1) + len(copy.copy(args)))

    return hook


def test_what_hooks_usually_carry_can_be_compared(model: torch.nn.Module) -> None:
    handle = model.model.layers[0].mlp.register_forward_hook(of_many_kinds())
    before = model_hash(model)
    handle.remove()
    model.model.layers[0].mlp.register_forward_hook(of_many_kinds())
    assert model_hash(model) == before


@pytest.mark.parametrize("carried", ("object", "list", "Linear"))
def test_a_hook_that_carries_what_cannot_be_compared_is_named(model: torch.nn.Module, carried: str) -> None:
    within: list = {"object": [object()], "list": [], "Linear": [torch.nn.Linear(2, 2)]}[carried]
    if carried == "list":
        within.append(within)
    assert why_incomparable(model) is None
    model.model.layers[0].mlp.register_forward_hook(lambda module, args, output: within and None)
    assert why_incomparable(model) == f"a hook on model.layers.0.mlp carries what cannot be compared ({carried})"
    with pytest.raises(TypeError, match=carried):
        model_hash(model)
