"""A head that reads the model's hidden states guesses: the text stays the model's."""

import eagle_heads
import pytest
import torch
from draft_models import NEW, call, deepseek_v2, deepseek_v3, gemma3, gemma3n, qwen3_next
from quantized_weight import QuantizedWeight, quantize
from spoiled_heads import changed, in_two_files, told_otherwise, without
from transformers import DynamicCache

import mmaccel
from mmaccel.decoding.drafters import assistant
from mmaccel.decoding.drafters.assistant import AssistantCost
from mmaccel.decoding.drafters.heads import published
from mmaccel.decoding.drafters.heads import steps as head_steps
from mmaccel.decoding.drafters.heads.eagle_weights import load_head
from mmaccel.decoding.drafters.heads.guesses import HeadGuesses
from mmaccel.decoding.drafters.heads.steps import HeadSteps
from mmaccel.decoding.drafters.pass_cost import PassCost
from mmaccel.decoding.drafters.steps import together
from mmaccel.errors import SettingError, UnsupportedTargetError, WeightsError
from mmaccel.vlm import EagleDraft, FusedDraft, examples, visual_examples


@pytest.fixture(scope="module")
def llama():
    return examples.llama(num_hidden_layers=4)[0]


@pytest.fixture(scope="module")
def head(llama, tmp_path_factory):
    return eagle_heads.write(tmp_path_factory.mktemp("head"), llama)


@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (3, 0), (3, 4)))
@pytest.mark.parametrize("sampled", (False, True))
@pytest.mark.filterwarnings("error:.past_key_values. is deprecated:FutureWarning")
def test_the_text_is_the_models(llama, head, batch, pad, sampled):
    given = call(batch, pad, do_sample=sampled and batch == 1)
    torch.manual_seed(2)
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, EagleDraft(head=head, always=True)) as fast:
        for _ in range(2):
            torch.manual_seed(2)
            assert torch.equal(fast.generate(**given), plain)
            assert fast.report.exact and not fast.report.warnings and fast.report.details["drafted"]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in llama.modules())


MODELS = examples.llama, gemma3, deepseek_v2, deepseek_v3, qwen3_next


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(("batch", "pad"), ((1, 0), (3, 4)))
def test_what_it_is_told_are_the_hidden_states_of_the_text(make, batch, pad, tmp_path, monkeypatch):
    """In trees, in chains, in batches whose rows accept different lengths: of every token but the last, in order."""
    made = make()
    model = made[0] if isinstance(made, tuple) else made
    path, given = eagle_heads.write(tmp_path, model, reads=(1, 2, 3)), call(batch, pad)
    monkeypatch.setattr(HeadGuesses, "learn", _told(HeadGuesses.learn, told := {}))
    with mmaccel.accelerate(model, EagleDraft(head=path, always=True)) as fast:
        texts = fast.generate(**given)
        assert fast.report.details["accepted"]
    mask = torch.cat([given["attention_mask"], torch.ones(batch, NEW, dtype=torch.long)], 1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    states = model(texts, attention_mask=mask, position_ids=places, output_hidden_states=True).hidden_states
    before_norm = []
    hook = (
        model.get_decoder()
        .layers[-1]
        .register_forward_hook(
            lambda _, __, output: before_norm.append(output if isinstance(output, torch.Tensor) else output[0])
        )
    )
    model(texts, attention_mask=mask, position_ids=places)
    hook.remove()
    expected = torch.cat([states[1], states[2], before_norm[0]], -1)
    assert len(told) == batch
    for row, found in enumerate(told.values()):
        whole = torch.cat(found)
        torch.testing.assert_close(whole, expected[row, -1 - len(whole) : -1], rtol=1e-3, atol=1e-3)
        assert len(whole) >= NEW + 35 - pad


def _told(learn, told):
    def watched(self, tokens, ends, likely):
        before = len(self._unread)
        learn(self, tokens, ends, likely)
        told.setdefault(id(self), []).extend(self._unread[before:])

    return watched


SWITCHES = ("", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


# each switch with each number of layers and in each form of a file, as EAGLE and as speculators
@pytest.mark.parametrize(
    ("layers", "nested", "switch"),
    [(layers, (layers + i) % 2 == 0, switch) for i, switch in enumerate(SWITCHES) for layers in (1, 2)],
)
def test_guesses_along_a_tree_are_those_of_each_path_read_alone(llama, tmp_path, layers, nested, switch):
    switches = {switch: True} if switch else {}
    found = load_head(eagle_heads.write(tmp_path, llama, layers=layers, nested=nested, **switches), llama).double()
    found.embedding, found.output = found.embedding.double(), found.output.double()
    steps = HeadSteps(found, always())
    row = Row(steps, 0, 19, ((19, 20), (20, 24), (24, 25)))
    for _ in range(3):
        row.learn()
        together([row.drafting()])
        row.expect_what_is_read_alone()


@pytest.mark.parametrize("window", (None, 9))
def test_guesses_for_the_texts_of_a_batch_are_those_for_each_alone(llama, head, window, monkeypatch):
    """Of prompts of other lengths, where one waits for a pass and another begins again; each step serves all rows."""
    monkeypatch.setattr(head_steps, "CHUNK", 8)
    found = load_head(head, llama).double()
    found.embedding, found.output, found.config.window = found.embedding.double(), found.output.double(), window
    steps = HeadSteps(found, always(), rows=3)
    rows = [
        Row(steps, 0, 19, ((19, 20), (20, 24), (24, 25))),
        Row(steps, 1, 7, ((7, 8), (8, 10), (10, 18))),
        Row(steps, 2, 12, ((12, 16), (16, 17), (17, 18))),
    ]
    taken = []
    monkeypatch.setattr(HeadSteps, "take", _noted(HeadSteps.take, taken))
    for passed in range(3):
        for row in rows:
            row.learn()
        going = [row for row in rows if row.number != passed]  # the other reads two passes the next time
        together([row.drafting() for row in going])
        for row in going:
            row.expect_what_is_read_alone()
        together([row.drafting() for row in going[:1]])  # what was guessed is guessed again
    assert max(taken) == 2 and taken.count(2) > len(taken) / 2
    steps.forget(1)
    rows[1] = Row(steps, 1, 11, ((11, 12), (12, 13)))
    rows[1].learn()
    together([row.drafting() for row in rows[1:]])
    rows[1].expect_what_is_read_alone()
    rows[2].expect_what_is_read_alone()
    assert torch.isfinite(steps._cache.layers[0].values).all()


def _noted(take, taken):
    return lambda self, steps: (taken.append(len(steps)), take(self, steps))[1]


class Row:
    """A text of a batch, whose model has read it in some parts."""

    def __init__(self, steps, number, prompt, parts):
        generator = torch.Generator().manual_seed(number)
        self.text = torch.randint(4, 60, (40,), generator=generator).tolist()
        self.states = torch.randn(45, 3 * 32, generator=generator).double()
        self.steps, self.number, self.parts, self.known = steps, number, list(parts), 0
        self.guesses = HeadGuesses(steps, self.take, row=number)
        self.guesses.begin(self.text[:prompt])

    def take(self):
        begin, self.known = self.known, self.end - 1
        return self.states[begin : self.known]

    def learn(self):
        begin, self.end = self.parts.pop(0)
        self.guesses.learn(self.text[begin : self.end], (), ())

    def drafting(self):
        """Ask for the guesses at five states."""
        waiting, self.read = [self.guesses.root()], []
        for _ in range(5):
            self.read.append(waiting.pop())
            yield from self.guesses.asking(self.read[-1])
            waiting.extend(behind for _, _, behind in self.guesses.guesses(self.read[-1]))

    def expect_what_is_read_alone(self):
        nodes, head = self.guesses._nodes, self.steps.head
        assert len(nodes) > len(self.read), "those beside it are read with it"
        for path, node in nodes.items():
            expected = alone(head, self.states, self.text[: self.end], path)
            torch.testing.assert_close(head.logits(node.hidden), expected)


def always():
    return AssistantCost(PassCost(9, always=True))


def alone(head, states, text, path):
    """The same with a pass for each token, from nothing on."""
    hidden, tokens = head.join(states[: len(text) - 1]), list(text[1:])
    for behind in range(len(path) + 1):
        length = len(tokens)
        mask = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - (head.config.window or length))[None, None]
        cache, places = DynamicCache(config=head.config), torch.arange(length)[None]
        last = head(torch.tensor([tokens]), hidden[None], places, mask, cache)[0, -1:]
        hidden, tokens = torch.cat([hidden, last]), [*tokens, *path[behind : behind + 1]]
    return head.logits(last[0])


def test_only_tokens_of_the_draft_vocabulary_are_guessed(llama, head):
    guesses = HeadGuesses(HeadSteps(load_head(head, llama), always()), lambda: torch.randn(3, 96))
    guesses.begin([5, 6, 7])
    assert guesses.root() is None, "nothing was read yet"
    guesses.learn([8], (), ())
    found = list(guesses.guesses(guesses.root()))
    assert found and all(token % 2 == 0 for token, _, _ in found)
    assert list(guesses.guesses(found[0][2])), "and on from its own state"


def test_a_head_without_matrices_of_its_own_takes_the_models(llama, tmp_path):
    found = load_head(eagle_heads.write(tmp_path, llama, own=False), llama)
    assert found.embedding.data_ptr() == llama.get_input_embeddings().weight.data_ptr()
    torch.testing.assert_close(found.output, llama.get_output_embeddings().weight[::2])


@pytest.mark.parametrize("nested", (False, True), ids=("EAGLE", "speculators"))
@pytest.mark.parametrize("own", (False, True))
def test_a_head_of_the_whole_vocabulary_needs_no_numbers_of_its_tokens(llama, tmp_path, nested, own):
    """Published without `d2t` and, as vLLM and SGLang read them, without `draft_vocab_size`."""
    path, matrix = eagle_heads.write(tmp_path, llama, own=own, nested=nested, whole=True), llama.lm_head.weight
    found = load_head(path, llama)
    assert found.draft_tokens.tolist() == list(range(len(matrix))) and found.output.shape == matrix.shape
    assert (found.output.data_ptr() == matrix.data_ptr()) == (not own), "no copy of the model's own"
    parameters = sum(value.nbytes for value in found.parameters())
    assert found.bytes == parameters + own * (found.embedding.nbytes + found.output.nbytes)
    plain = llama.generate(**call())
    with mmaccel.accelerate(llama, EagleDraft(head=path, always=True)) as fast:
        assert torch.equal(fast.generate(**call()), plain) and fast.report.details["drafted"]


def test_a_head_takes_the_values_of_quantized_matrices(llama, tmp_path):
    path = eagle_heads.write(tmp_path, llama, own=False)
    plain, kept = load_head(path, llama), llama.get_output_embeddings().weight
    quantize(llama.get_output_embeddings())
    try:
        found = load_head(path, llama)
    finally:
        llama.get_output_embeddings().weight = kept
    assert torch.equal(found.output, plain.output) and torch.equal(found.embedding, plain.embedding)


def test_a_quantized_matrix_is_read_once(llama, tmp_path, monkeypatch):
    path, matrix = eagle_heads.write(tmp_path, llama, own=False), llama.get_output_embeddings()
    read, values = [], QuantizedWeight.dequantize
    monkeypatch.setattr(QuantizedWeight, "dequantize", lambda weight: read.append(weight) or values(weight))
    kept = matrix.weight
    quantize(matrix)
    try:
        with mmaccel.accelerate(llama, EagleDraft(head=path, always=True)) as fast:
            for _ in range(2):
                fast.generate(**call())
                assert fast.report.details["drafted"] and len(read) == 1
    finally:
        matrix.weight = kept


def test_a_head_in_several_files(llama, tmp_path):
    whole = load_head(eagle_heads.write(tmp_path, llama), llama)
    in_two_files(tmp_path)
    found = load_head(str(tmp_path), llama)
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in whole.state_dict().items())
    assert torch.equal(found.output, whole.output) and torch.equal(found.draft_tokens, whole.draft_tokens)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match="head=.*model-00002-of-00002.safetensors") as raised:
        load_head(str(tmp_path), llama)
    assert "save_file" not in str(raised.value), "it is in safetensors"


def test_what_a_head_does_not_say_is_read_as_engines_do(llama, tmp_path):
    """EAGLE's own are without, speculators' are with it: as vLLM reads them."""
    for nested, said, expected in (
        (False, {}, False),
        (True, {}, True),
        (True, {"norm_before_residual": False}, False),
    ):
        path = eagle_heads.write(tmp_path / f"{nested}{len(said)}", llama, nested=nested, **said)
        assert load_head(path, llama).config.norm_before_residual is expected


@pytest.mark.parametrize("tied", (False, True), ids=("", "tied"))
@pytest.mark.parametrize("own", (False, True), ids=("the model's matrices", "its own"))
def test_a_model_whose_tokens_change(tmp_path, monkeypatch, own, tied):
    """Some are added in a session, of which nothing was learned; others were cut off before, and are not proposed."""
    monkeypatch.setattr(published, "CLOSE", 0.6)
    model = examples.llama(num_hidden_layers=4, tie_word_embeddings=tied)[0]
    path = eagle_heads.write(tmp_path, model, own=own)
    for first, size in ((64, 66), (30, 30)):
        given = call()
        given["input_ids"] = given["input_ids"] % first
        model.resize_token_embeddings(first)
        with mmaccel.accelerate(model, EagleDraft(head=path, always=True)) as fast:
            fast.generate(**given)
            model.resize_token_embeddings(size)
            given["input_ids"] = torch.where(given["input_ids"] % 7 == 0, size - 1, given["input_ids"])
            written = fast.generate(**given)
            assert fast.report.details["drafted"] and not fast.report.warnings
        assert torch.equal(model.generate(**given), written)


def test_nothing_is_known_of_tokens_that_were_added_but_by_the_models_own_embedding(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "CLOSE", 0.1)
    model = examples.llama(num_hidden_layers=4)[0]
    path = eagle_heads.write(tmp_path, model)
    head = load_head(path, model)
    own = head.embedding
    model.resize_token_embeddings(66)
    grown = head.beside(model).embedding
    assert len(grown) == 66 and torch.equal(grown[:64], own) and not grown[64:].any()
    matrix = model.get_input_embeddings().weight
    changed(lambda found: {**found, "embed_tokens.weight": matrix[:64].detach().clone()})(tmp_path)
    assert load_head(path, model).embedding.data_ptr() == matrix.data_ptr(), "the same once more"


def test_a_window_is_that_of_the_mask(llama, tmp_path):
    path = eagle_heads.write(tmp_path, llama)
    told_otherwise(sliding_window=5, layer_types=["sliding_attention"])(tmp_path)
    narrow = load_head(path, llama)
    text, states = list(range(4, 30)), torch.randn(26, 96, generator=torch.Generator().manual_seed(3))
    seen = []
    for head, first in ((narrow, 0), (narrow, 20), (load_head(eagle_heads.write(tmp_path, llama), llama), 0)):
        guesses = HeadGuesses(HeadSteps(head, always()), lambda first=first: states[first:25])
        guesses.begin(text[:25])
        guesses.learn(text[25:], (), ())
        (_, _, behind), *_ = guesses.guesses(guesses.root())
        list(guesses.guesses(behind))
        seen.append([node.hidden for node in guesses._nodes.values()][:2])
    for one, other, whole in zip(*seen, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(one, whole, rtol=1e-2, atol=1e-2)


def test_what_guidance_reads_is_not_of_the_text(llama, head):
    given = call(guidance_scale=1.5)
    plain = llama.generate(**given)
    with mmaccel.accelerate(llama, EagleDraft(head=head, always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert fast.report.details["accepted"]


def test_a_prompt_of_embeddings_alone(llama, head):
    given = call()
    embeds = llama.get_input_embeddings()(given.pop("input_ids"))
    plain = llama.generate(**given, inputs_embeds=embeds)
    with mmaccel.accelerate(llama, EagleDraft(head=head, always=True)) as fast:
        assert torch.equal(fast.generate(**given, inputs_embeds=embeds), plain)


def test_rotary_frequencies_stay_in_float32(tmp_path):
    model = examples.llama()[0].bfloat16()
    head = load_head(eagle_heads.write(tmp_path, model), model)
    assert head.fc.weight.dtype == torch.bfloat16 and head.rotary_emb.inv_freq.dtype == torch.float32


def test_its_guesses_are_believed_from_the_first_on(llama, head):
    with mmaccel.accelerate(llama, EagleDraft(head=head)) as fast:
        fast.generate(**call(max_new_tokens=2))
        acceptance = fast.memory["vlm.EagleDraft, acceptance"]
        assert acceptance.of_all([("headed", 10)]) > 0.5 > acceptance.of_all([("headed", 2)])


def test_each_row_is_asked_again_and_what_was_not_read_is_bounded(llama, head, monkeypatch):
    monkeypatch.setattr(AssistantCost, "pays", lambda self, share, place=0.0: False)
    monkeypatch.setattr(assistant, "AGAIN", 8)
    rows = []
    monkeypatch.setattr(HeadGuesses, "_read", _counting(HeadGuesses._read, rows))
    with mmaccel.accelerate(llama, EagleDraft(head=head)) as fast:
        fast.generate(**call(4))
    assert set(rows) == {0, 1, 2, 3}


def _counting(read, rows):
    return lambda self: (rows.append(self.row), read(self))[1]


def test_a_long_read_is_no_step_and_the_likeliest_token_is_read_to_have_one(llama, head):
    cost = always()
    guesses = HeadGuesses(HeadSteps(load_head(head, llama), cost), lambda: torch.randn(40, 96))
    guesses.begin(list(range(4, 44)))
    guesses.learn([5], (), ())
    list(guesses.guesses(guesses.root()))
    assert len(guesses._nodes) > 1 and len(cost.seconds) == 1


def test_a_compiled_model_tells_nothing_and_the_report_says_so(head):
    model = examples.llama(num_hidden_layers=4)[0]
    given = call()
    plain = model.generate(**given)
    for layer in model.get_decoder().layers:
        layer.compile(backend="eager")
    with mmaccel.accelerate(model, EagleDraft(head=head, always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)
        assert any("a compiled model tells no hidden states" in warning for warning in fast.report.warnings)


def test_nothing_stays_on_the_model_where_drafting_fails(head, monkeypatch):
    model = examples.llama(num_hidden_layers=4)[0]
    monkeypatch.setattr(HeadGuesses, "begin", lambda *_: 1 / 0)
    with mmaccel.accelerate(model, EagleDraft(head=head)) as fast, pytest.raises(ZeroDivisionError):
        fast.generate(**call())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_which_layers_it_reads(llama, tmp_path):
    for folder, more in (("vllm", {"nested": True}), ("sglang", {})):
        path = eagle_heads.write(tmp_path / folder, llama, reads=(1, 3, 4), **more)
        assert tuple(load_head(path, llama).config.layers_read) == (1, 3, 4)
    assert tuple(load_head(eagle_heads.write(tmp_path / "none", llama), llama).config.layers_read) == (2, 2, 1)


def test_it_follows_the_model_to_another_type(tmp_path):
    model = examples.llama()[0]
    with mmaccel.accelerate(model, EagleDraft(head=eagle_heads.write(tmp_path, model), always=True)) as fast:
        fast.generate(**call())
        model.bfloat16()
        fast.generate(**call())
        assert fast.report.details["drafted"]


def test_a_reader_of_pictures(tmp_path):
    model, arguments = visual_examples.qwen2_5_vl()
    given = arguments(1, max_new_tokens=16)
    plain = model.generate(**given)
    with mmaccel.accelerate(model, EagleDraft(head=eagle_heads.write(tmp_path, model), always=True)) as fast:
        assert torch.equal(fast.generate(**given), plain)


def test_in_plain_transformers(llama, head):
    given = call()
    drafts = EagleDraft(head=head, always=True).custom_generate()
    assert torch.equal(llama.generate(**given, custom_generate=drafts), llama.generate(**given))
    assert drafts.report.details["drafted"]
    with pytest.raises(SettingError, match=r"reads hidden states .*: use vlm.FusedDraft\(\) for an engine"):
        EagleDraft(head=head).custom_generate().drafters()


def test_without_a_head_it_drafts_as_fused_draft_and_says_so(llama):
    details = []
    for method in (EagleDraft(always=True), FusedDraft(always=True)):
        with mmaccel.accelerate(llama, method) as fast:
            fast.generate(**call())
            details.append(fast.report.details)
            warned = any("name one, as in EagleDraft(head=" in warning for warning in fast.report.warnings)
            assert warned == isinstance(method, EagleDraft)
    assert details[0] == details[1]


@pytest.mark.parametrize(
    ("spoiled", "error", "said"),
    (
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), WeightsError, "save_file"),
        (lambda folder: (folder / "config.json").unlink(), WeightsError, "config.json"),
        (without("fc.weight"), WeightsError, r"is not what its config.json says: \['fc.weight'\]"),
        (told_otherwise(model_type="mamba"), WeightsError, "has a layer of mamba, and only those of llama and qwen3"),
        (without("midlayer.hidden_norm.weight"), WeightsError, "an older head, EAGLE 1 or 2: give an EAGLE-3 head"),
        (told_otherwise(draft_vocab_size=None), WeightsError, r"is not what .*lm_head.weight"),
        (told_otherwise(speculators_model_type="peagle"), WeightsError, "is of no EAGLE-3 head, but of peagle: give"),
        (told_otherwise(rope_parameters={"rope_type": "spiral"}), WeightsError, "rotary embeddings of kind 'spiral'"),
        (
            told_otherwise(layer_types=["sliding_attention", "full_attention"]),
            WeightsError,
            "with a window and without",
        ),
        (told_otherwise(vocab_size=64, draft_vocab_size=30), WeightsError, r"is not what .*lm_head.weight"),
        (
            told_otherwise(eagle_aux_hidden_state_layer_ids=[1, 2, 5]),
            UnsupportedTargetError,
            r"reads layers \(1, 2, 5\)",
        ),
        (told_otherwise(target_hidden_size=64), UnsupportedTargetError, "model of hidden size 64, .* has 32: give"),
        (told_otherwise(intermediate_size=64), WeightsError, "is not what its config.json says"),
        (without("d2t"), WeightsError, "has no d2t, which says which 32 tokens it drafts"),
        (
            changed(lambda found: {**found, "fc.weight_scale": torch.ones(1)}),
            WeightsError,
            r"is quantized \(fc.weight_scale\), .* give the one that it was made from",
        ),
        (
            changed(lambda found: {**found, "fc.weight": found["fc.weight"].to(torch.float8_e4m3fn)}),
            WeightsError,
            r"is quantized \(fc.weight in float8_e4m3fn\)",
        ),
        (
            changed(lambda found: {**found, "embed_tokens.weight": torch.zeros(32, 32)}),
            UnsupportedTargetError,
            "has embeddings of 32 tokens, LlamaForCausalLM has 64: give the head that was trained for it",
        ),
    ),
    ids=(
        "pickled",
        "no configuration",
        "a matrix is missing",
        "kind",
        "older",
        "part of a vocabulary",
        "parallel",
        "rotary",
        "windows",
        "output",
        "layers",
        "other model",
        "other sizes",
        "no numbers",
        "quantized",
        "float8",
        "other vocabulary",
    ),  # fmt: skip
)
def test_what_is_no_head_for_the_model_is_refused(llama, tmp_path, spoiled, error, said):
    path = eagle_heads.write(tmp_path, llama)
    spoiled(tmp_path)
    with pytest.raises(error, match=said):
        mmaccel.accelerate(llama, EagleDraft(head=path))
    with mmaccel.accelerate(llama, FusedDraft()):
        pass


@pytest.mark.parametrize(("part", "name"), (("model.embed_tokens", "embedding"), ("lm_head", "lm_head")))
def test_what_a_head_reads_may_not_be_off_loaded(head, part, name):
    model = examples.llama(num_hidden_layers=4, tie_word_embeddings=False)[0]
    model.get_submodule(part).to("meta")  # where accelerate leaves it between passes
    with pytest.raises(UnsupportedTargetError, match=f"has its {name} off-loaded, .* keep embedding and lm_head on a"):
        mmaccel.accelerate(model, EagleDraft(head=head))


def test_a_model_of_several_states_for_each_token_is_refused(tmp_path):
    model = gemma3n()
    path = eagle_heads.write(tmp_path, model)
    with pytest.raises(UnsupportedTargetError, match="Gemma3nForCausalLM has 4 hidden states for .*FusedDraft"):
        mmaccel.accelerate(model, EagleDraft(head=path))


def test_a_head_is_named_by_text():
    with pytest.raises(SettingError, match="head"):
        EagleDraft(head=3)
