"""TCA on small CLIP models: what is pruned and merged, what the reservoir holds, and how it votes."""

import math
import threading

import pytest
import torch
from transformers import CLIPVisionModel, CLIPVisionModelWithProjection

import mmaccel
from mmaccel.adapter import find_adapter
from mmaccel.errors import ActiveSessionError, SettingError, UnsupportedTargetError
from mmaccel.testing.snapshot import snapshot
from mmaccel.vlm import TCA, SparsePrefill, examples
from mmaccel.vlm.comparing_encoders import EncoderTrial, outputs
from mmaccel.vlm.encoders import tca
from mmaccel.vlm.encoders.condensing import Condensing, condense, merge, ranks
from mmaccel.vlm.encoders.reservoir import Reservoir

pytestmark = pytest.mark.usefixtures("no_gradients")


@pytest.fixture
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def clip():
    return examples.clip()


def near(a, b):
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def condensed(patches, scores, count):
    """One picture in plain Python."""
    order = sorted(range(len(patches)), key=lambda i: -scores[i])
    centers = min(4, count)
    pruned = (len(patches) - count + centers) // 3
    best, middle = order[: count - centers], order[count - centers : len(order) - pruned]
    chosen = [middle[0]]
    while len(chosen) < centers:
        rest = [i for i in middle if i not in chosen]
        chosen.append(max(rest, key=lambda i: min(float((patches[i] - patches[c]).norm()) for c in chosen)))
    groups = {c: [(1.0, c)] for c in chosen}
    for i in middle:
        if i not in chosen:
            distance, owner = min((float((patches[i] - patches[c]).norm()), n) for n, c in enumerate(chosen))
            groups[chosen[owner]].append((1 / max(1.0, distance), i))
    means = [sum(w * patches[i] for w, i in group) / sum(w for w, _ in group) for group in groups.values()]
    return torch.stack([*(patches[i] for i in best), *means])


@pytest.mark.parametrize(("length", "count"), ((49, 30), (49, 48), (49, 47), (7, 3), (5, 1), (64, 13), (2, 1)))
def test_the_best_stay_the_middle_ones_merge_and_the_rest_go(length, count):
    generator = torch.Generator().manual_seed(length * count)
    patches = 2 * torch.randn(3, length, 6, generator=generator)
    scores = torch.rand(3, length, generator=generator)
    out = condense(patches, scores, count)
    assert out.shape == (3, count, 6)
    for row in range(3):
        near(out[row], condensed(patches[row], scores[row].tolist(), count))
    assert condense(patches, scores, length) is patches and condense(patches, scores, length + 9) is patches


def test_equal_tokens_merge_into_themselves():
    token = torch.randn(1, 1, 5)
    near(merge(token.expand(2, 9, 5), 4), token.expand(2, 4, 5))
    assert merge(token.expand(2, 9, 5).half(), 4).isfinite().all()


def test_a_rank_is_the_mean_over_heads():
    query, key = torch.randn(3, 8), torch.randn(3, 11, 8)
    found = ranks(query, key, 2)
    for row in range(3):
        places = torch.zeros(11)
        for head in (slice(0, 4), slice(4, 8)):
            order = sorted(range(11), key=lambda i, h=head: float(query[row, h] @ key[row, i, h]))
            for place, i in enumerate(order):
                places[i] += place / 2
        near(found[row], places)


def test_half_precision_makes_no_ties():
    key = torch.tensor([[[256, 0.5], [256, 0.25]]]).bfloat16()
    assert ranks(torch.ones(1, 2).bfloat16(), key, 1).tolist() == [[1.0, 0.0]]


def test_tokens_go_where_the_paper_lets_them():
    shares = TCA(keep=0.512).shares(12)
    assert list(shares) == [3, 6, 9] and [round(share, 6) for share in shares.values()] == [0.8, 0.64, 0.512]
    assert TCA(keep=1.0).shares(12) == {} and list(TCA(cuts=1, keep=0.5).shares(5)) == [2]
    assert TCA(cuts=9, keep=0.5).shares(2)[2] == 0.5, "more depths than layers"


def plain_tower(model, pixels, method, anchors):
    """The tower in plain steps, whose class token attends by softmax; its class tokens and its last hidden states."""
    tower = model.vision_model
    hidden = tower.pre_layrnorm(tower.embeddings(pixels))
    patches, seen, shares = hidden.shape[1] - 1, [], method.shares(4)
    for number, layer in enumerate(tower.encoder.layers, 1):
        anchor = None if number == 1 or number not in shares else anchors(number - 2)
        if anchor is not None:
            likeness = torch.cosine_similarity(hidden[:, :1], anchor[None], dim=-1)
            hidden = torch.cat([hidden, anchor[likeness.argmax(1)][:, None]], 1)
        attention, normed = layer.self_attn, layer.layer_norm1(hidden)
        query, key = (p(normed).unflatten(-1, (4, -1)) for p in (attention.q_proj, attention.k_proj))
        weights = (torch.einsum("bhd,bnhd->bhn", query[:, 0], key) * attention.scale).softmax(-1)
        hidden = layer(hidden, None)
        if anchor is not None:
            hidden, weights = hidden[:, :-1], weights[..., :-1]
        seen.append(hidden[:, 0])
        if number in shares:
            scores = weights[..., 1:].argsort(-1).argsort(-1).float().mean(1)
            left = condense(hidden[:, 1:], scores, round(shares[number] * patches))
            hidden = torch.cat([hidden[:, :1], left], 1)
    return torch.stack(seen, 1), hidden


def test_a_pass_with_anchors_is_that_of_plain_steps(clip):
    model, arguments = clip
    method, pictures = TCA(keep=0.4), arguments(3)["pixel_values"]
    with mmaccel.accelerate(model, method) as fast:
        fast(**arguments(5))
        reservoir = fast.memory["vlm.TCA"]
        output = fast.vision_model(pictures)
        assert reservoir.anchors(1) is not None and fast.report.engaged
    _, hidden = plain_tower(model, pictures, method, reservoir.anchors)
    near(output.last_hidden_state, hidden)
    assert hidden.shape[1] == 1 + round(0.4 * 64)
    _, alone = plain_tower(model, pictures, method, lambda _: None)
    assert not torch.allclose(hidden, alone, atol=1e-3), "the anchors do something"


def test_logits_are_those_of_the_condensed_pass_and_the_votes(clip):
    model, arguments = clip
    call = arguments(3)
    with mmaccel.accelerate(model, TCA(keep=0.4, weight=0)) as fast:
        bare = fast(**call)
    with mmaccel.accelerate(model, TCA(keep=0.4, weight=2.0, sharpness=4.0, depth=0.5)) as fast:
        output = fast(**call)
        assert fast.report.details["reservoir"] == 3
    tokens, _ = plain_tower(model, call["pixel_values"], TCA(keep=0.4), lambda _: None)
    labels = bare.logits_per_image.argmax(1).tolist()
    weights = [math.exp(layer / 3 / 0.5) for layer in range(4)]
    for row in range(3):
        for label in range(3):
            vote = 0.0
            for other in (n for n in range(3) if labels[n] == label):
                alike = torch.cosine_similarity(tokens[row], tokens[other], dim=-1)
                mean = sum(w * float(c) for w, c in zip(weights, alike, strict=True)) / sum(weights)
                vote += 2.0 * math.exp(-4.0 * (1 - mean))
            near(output.logits_per_image[row, label], bare.logits_per_image[row, label] + vote)
    assert torch.equal(output.logits_per_text, output.logits_per_image.T)


def test_keeping_everything_changes_no_bit_and_leaves_no_trace(clip):
    model, arguments = clip
    before, call = snapshot(model), arguments(3)
    plain, features = model(**call), model.get_image_features(call["pixel_values"]).pooler_output
    with mmaccel.accelerate(model, TCA(keep=1.0)) as fast:
        for _ in range(2):
            assert torch.equal(fast(**call).logits_per_image, plain.logits_per_image)
        assert torch.equal(fast.get_image_features(call["pixel_values"]).pooler_output, features)
        assert not fast.report.engaged and not fast.memory
    with mmaccel.accelerate(model, TCA(keep=0.3)) as fast:
        assert not torch.equal(fast(**call).logits_per_image, plain.logits_per_image)
        with fast.baseline() as bare:
            assert torch.equal(bare(**call).logits_per_image, plain.logits_per_image)
    assert snapshot(model) == before and torch.equal(model(**call).logits_per_image, plain.logits_per_image)


def test_a_row_of_a_batch_is_the_picture_alone(clip):
    model, arguments = clip
    call = arguments(3)
    with mmaccel.accelerate(model, TCA(keep=0.3, reservoir=0)) as fast:
        together = fast(**call).logits_per_image
        for row in range(3):
            alone = {**call, "pixel_values": call["pixel_values"][row : row + 1]}
            near(fast(**alone).logits_per_image[0], together[row])
        assert not fast.memory and fast.report.peak_extra_bytes == 0


def test_what_is_held_follows_a_model_that_is_moved():
    """Tensors of the meta device hold nothing, and tell where they are."""
    reservoir, condensing, meta = Reservoir(2), Condensing([None] * 4, {2: 0.5}), torch.device("meta")
    reservoir.begin(torch.eye(3))
    reservoir.add(torch.randn(1, 4, 8), torch.eye(3)[:1])
    condensing.begin(reservoir)
    (wider,), _ = condensing._before(2, None, (torch.zeros(2, 10, 8, device=meta),), {})
    assert wider.is_meta and wider.shape == (2, 11, 8)
    reservoir.add(tokens := torch.zeros(2, 4, 8, device=meta), torch.eye(3)[:2])
    assert reservoir.tokens.is_meta and reservoir.means.is_meta and reservoir.uncertainty.is_meta
    assert reservoir.votes(tokens, torch.full((4,), 0.25), 5.0).is_meta and reservoir.counts == [2, 1, 0]


@pytest.mark.parametrize("alone", (False, True), ids=("model", "tower"))
def test_a_call_in_the_middle_of_another_is_refused_before_that_is_touched(clip, alone):
    model, arguments = clip
    calls, refused, thread, adapter = [arguments(3), arguments(2)], [], threading.get_ident(), find_adapter(model)

    @torch.no_grad()
    def second():
        with pytest.raises(ActiveSessionError, match="is in the middle of another call"):
            adapter.tower(calls[1]["pixel_values"]) if alone else model(**calls[1])
        refused.append(1)

    def meanwhile(*_):
        if threading.get_ident() == thread:
            other = threading.Thread(target=second)
            other.start()
            other.join()

    def made(hook):
        with (
            mmaccel.accelerate(model, TCA(keep=0.4)) as fast,
            adapter.layers[1].register_forward_pre_hook(hook),
        ):
            return [fast(**call).logits_per_image for call in calls], fast.report.details

    expected, told = made(lambda *_: None)
    found, details = made(meanwhile)
    assert all(map(torch.equal, found, expected)) and details == told and refused == [1, 1]


def test_texts_that_were_encoded_before_are_the_classes(clip):
    model, arguments = clip
    call = arguments(3)
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast:
        fast.get_image_features(call["pixel_values"])
        assert "get_text_features" in fast.report.warnings[0] and fast.report.engaged
        fast.get_text_features(call["input_ids"])
        fast.get_image_features(call["pixel_values"])
        assert fast.report.details["reservoir"] == 3 and not fast.report.warnings
        found = fast.memory["vlm.TCA"].counts
        fast.memory.clear()
        fast(**call)
        assert fast.memory["vlm.TCA"].counts == found, "as a whole call decides"
        fast(**arguments(2, texts=5))
        assert len(fast.memory["vlm.TCA"].counts) == 5 and len(fast.memory["vlm.TCA"]) == 2, "other texts begin anew"


def test_in_a_comparison_pictures_do_not_vote_for_themselves(clip):
    model, arguments = clip
    call = arguments(3)
    plain = outputs(model(**call))
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast:
        first, again = outputs(fast(**call)), outputs(fast(**call))
    trial = EncoderTrial(find_adapter(model), call)
    found = mmaccel.compare(model, TCA(keep=0.4), **call).rows[1]
    assert found["quality"] == pytest.approx(trial.judge(plain, first)["off"])
    assert found["quality"] != pytest.approx(trial.judge(plain, again)["off"])


def test_class_tokens_are_let_go_after_a_call_and_patches_before(clip, monkeypatch):
    model, arguments = clip
    made, hidden = [], torch.randn(2, 50, 8)
    monkeypatch.setattr(tca, "Condensing", lambda *given: made.append(Condensing(*given)) or made[-1])
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast:
        for call in (fast, lambda pixel_values, **_: fast.get_image_features(pixel_values)):
            call(**arguments(2))
            assert fast.report.details["reservoir"] and made[0].seen == []
    condensing = Condensing([], {})
    for reservoir, sizes in ((Reservoir(1), [2 * 8 * 4]), (None, [])):
        condensing.begin(reservoir)
        condensing._after(1, None, (), {}, hidden)
        assert [token.untyped_storage().nbytes() for token in condensing.seen] == sizes


def test_a_call_that_breaks_off_teaches_nothing(clip):
    model, arguments = clip
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast:
        fast(**arguments(2))
        with pytest.raises(ValueError, match="Input image size"):
            fast(**arguments(2, side=40))
        assert len(fast.memory["vlm.TCA"]) == 2
        assert fast(**arguments(1)).logits_per_image.isfinite().all()


def test_outputs_may_be_tuples_and_hidden_states_and_attention_eager():
    model, arguments = examples.clip()
    call = arguments(2)
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast:
        whole = fast(**call, output_hidden_states=True)
        lengths = [hidden.shape[1] for hidden in whole.vision_model_output.hidden_states]
        assert lengths[0] == 65 and lengths[-1] == 1 + round(0.4 * 64)
        fast.memory.clear()
        assert torch.equal(fast(**call, return_dict=False)[0], whole.logits_per_image)
        fast.memory.clear()
        model.set_attn_implementation("eager")
        near(fast(**call).logits_per_image, whole.logits_per_image)


def test_a_model_may_be_compiled_and_its_layers_may_not():
    (model, arguments), (other, _) = examples.clip(), examples.clip()
    with mmaccel.accelerate(other, TCA(keep=0.4)) as fast:
        expected = fast(**arguments(2)).logits_per_image
    model.compile(backend="eager")
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast:
        near(fast(**arguments(2)).logits_per_image, expected)
    layer = other.vision_model.encoder.layers[1]
    layer.forward = torch.compile(layer.forward, backend="eager")
    with pytest.raises(UnsupportedTargetError, match="CLIPEncoderLayer does inside, and this one is compiled"):
        mmaccel.accelerate(other, TCA())
    del layer.forward
    other.vision_model.encoder.layers[1] = torch.compile(layer, backend="eager")
    with pytest.raises(UnsupportedTargetError, match="compiled"):
        mmaccel.accelerate(other, TCA())
    other.vision_model.encoder.layers[1] = layer
    layer.compile(backend="eager")
    with pytest.raises(UnsupportedTargetError, match="CLIPEncoderLayer does inside, and this one is compiled"):
        mmaccel.accelerate(other, TCA())


def test_what_was_learned_in_inference_mode_can_be_added_to(clip):
    model, arguments = clip
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast:
        with torch.inference_mode():
            fast(**arguments(2))
        assert fast(**arguments(7)).logits_per_image.isfinite().all()
        with torch.enable_grad():
            fast(**arguments(1)).logits_per_image.sum().backward()
        model.zero_grad()


def test_texts_of_inference_mode_serve_pictures_with_gradients(clip):
    model, arguments = clip
    call = arguments(2)
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast:
        with torch.inference_mode():
            fast.get_text_features(call["input_ids"])
        with torch.enable_grad():
            features = fast.get_image_features(call["pixel_values"])
            assert fast.report.details["reservoir"] == 2
            (features if isinstance(features, torch.Tensor) else features.pooler_output).sum().backward()
        model.zero_grad()


def test_no_graph_of_an_earlier_call_is_held(clip, monkeypatch):
    model, arguments = clip
    made, start = [], tca.Adaptation.__init__
    monkeypatch.setattr(tca.Adaptation, "__init__", lambda self, *given: made.append(self) or start(self, *given))
    with mmaccel.accelerate(model, TCA(keep=0.4)) as fast, torch.enable_grad():
        assert fast(**arguments(2)).logits_per_image.requires_grad
        assert made[0].pooled.grad_fn is None


@pytest.mark.parametrize("cls", (CLIPVisionModel, CLIPVisionModelWithProjection))
def test_a_tower_alone_is_condensed(clip, cls):
    model, arguments = clip
    tower, pictures = cls(model.config.vision_config).eval(), arguments(3)["pixel_values"]
    plain = tower(pictures)[0]
    with mmaccel.accelerate(tower, TCA(keep=0.001)) as fast:
        for _ in range(2):
            assert fast(pictures).last_hidden_state.shape[:2] == (3, 2), "one patch is left at least"
        assert fast.report.engaged and fast.report.visual_tokens < fast.report.plain_visual_tokens == 3 * 64
    assert torch.equal(tower(pictures)[0], plain)


def test_the_reservoir_lets_go_of_the_unsure_and_alike():
    reservoir = Reservoir(2)
    reservoir.begin(torch.eye(3))
    sure, unsure = torch.tensor([[9.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.9, 0.8]])
    one, other, third = torch.eye(4)[:3, None, None].expand(3, 1, 2, 4)
    for tokens, logits in ((one, sure), (other, unsure), (third, sure)):
        reservoir.add(tokens, logits)
    assert reservoir.counts == [2, 0, 0] and len(reservoir) == 2
    assert torch.equal(reservoir.tokens[0, :2], torch.cat([one, third])), "the unsure one goes"
    reservoir.add(one * 3, sure)
    assert third.tolist() in reservoir.tokens[0, :2, None].tolist(), "of two that are alike one goes"
    near(reservoir.anchors(1)[0], reservoir.tokens[0, :2, 1].mean(0))
    reservoir.begin(torch.eye(3))
    assert len(reservoir) == 2 and reservoir.nbytes() > 0
    reservoir.begin(torch.eye(3).roll(1, 0))
    assert len(reservoir) == 0 and reservoir.anchors(0) is None and reservoir.nbytes() == 0


def test_autocast_changes_no_vote():
    tokens, logits = torch.randn(6, 2, 16, generator=torch.Generator().manual_seed(0)), torch.tensor([[9.0, 0.0]])
    found = []
    for enabled in (False, True):
        reservoir = Reservoir(2)
        reservoir.begin(torch.eye(2))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            for one in tokens:
                reservoir.add(1 + 0.03 * one[None], logits)
            found.append((reservoir.tokens[:, :2], reservoir.votes(tokens, torch.full((2,), 0.5), 5.0)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("setting", "value"),
    (
        ("keep", 0),
        ("keep", 1.5),
        ("cuts", 0),
        ("reservoir", -1),
        ("weight", -1),
        ("sharpness", float("nan")),
        ("depth", 0),
    ),
)
def test_a_setting_out_of_range_is_named(setting, value):
    with pytest.raises(SettingError, match=rf"TCA\({setting}="):
        TCA(**{setting: value})


def test_other_models_and_other_methods_are_refused(clip):
    with pytest.raises(UnsupportedTargetError, match="CLIPModel is a clip model: vlm.TCA works on it"):
        mmaccel.accelerate(clip[0], SparsePrefill())
    with pytest.raises(UnsupportedTargetError, match=r"vlm\.TCA"):
        mmaccel.accelerate(examples.llama()[0], TCA())
    with pytest.raises(UnsupportedTargetError, match=r"vlm\.TCA works on clip models"):
        mmaccel.accelerate(examples.visual_examples.onevision()[0], TCA())
