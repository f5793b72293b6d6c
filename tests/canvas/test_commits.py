"""What a run committed when: as numbers, as words, and as a picture."""

import pytest
import torch
from diffusers.callbacks import MultiPipelineCallbacks, PipelineCallback

import mmaccel
from mmaccel import canvas, zoo
from mmaccel.canvas import examples
from mmaccel.cli import main as cli
from mmaccel.errors import SettingError


@pytest.fixture(scope="module")
def loaded():
    pipe, processor = zoo.load("tiny-canvas")
    pipe.set_progress_bar_config(disable=True)
    asked = zoo.questions("tiny-canvas", 2, seed=9)
    return pipe, processor(videos=[each.frames for each in asked], text=[each.question for each in asked])


def test_one_token_a_step_is_one_token_a_step(loaded):
    pipe, inputs = loaded
    commits = canvas.Commits()
    made = pipe(**inputs, threshold=2, callback_on_step_end=commits)
    for row, text in enumerate(made.texts):
        steps = commits.steps[row][commits.steps[row] > 0]
        assert len(steps.unique()) == len(steps), "two tokens in one step"
        assert " ".join(word for word, _ in commits.words(pipe.tokenizer, row)) == text
    prompt = inputs["input_ids"].shape[1]
    assert not commits.steps[:, :prompt].any() and torch.equal(commits.tokens[:, :prompt], inputs["input_ids"])


def test_a_rule_commits_together_and_a_new_run_begins_anew(loaded):
    pipe, inputs = loaded
    commits = canvas.Commits()
    with mmaccel.accelerate(pipe, canvas.FactorCommit()) as fast:
        for _ in range(2):
            fast(**inputs, threshold=2, callback_on_step_end=commits)
            steps = {step for _, step in commits.words(pipe.tokenizer)}
            assert 1 < len(steps) <= fast.report.details["passes"] < len(commits.words(pipe.tokenizer))


@pytest.mark.parametrize("first", (False, True))
def test_what_another_callback_edits_stays_edited(loaded, first):
    pipe, inputs = loaded
    place, commits = inputs["input_ids"].shape[1], canvas.Commits()

    class Edit(PipelineCallback):
        tensor_inputs = ("block_x",)

        def callback_fn(self, pipeline, step_index, timesteps, callback_kwargs):
            edited = callback_kwargs["block_x"].clone()
            edited[:, place] = 7
            return {**callback_kwargs, "block_x": edited}

    both = MultiPipelineCallbacks([commits, Edit()] if first else [Edit(), commits])
    made = pipe(**inputs, gen_length=4, eos_early_stop=False, callback_on_step_end=both)
    assert (made.sequences[:, 0] == 7).all() and commits.steps[:, place + 1].all()


def test_nothing_is_committed_of_a_text_that_has_ended():
    """Also where the call names the mask, and not the tokenizer, as with LLaDA."""
    pipe, arguments = examples.block_causal()
    plain, commits = pipe(**arguments(2, gen_length=40)).sequences, canvas.Commits()
    end = next(int(token) for token in plain[0, :8] if token not in plain[1])
    call = {"gen_length": 40, "eos_early_stop": True, "eos_token_id": end}
    pipe(**arguments(2, **call), callback_on_step_end=commits)
    masked = commits.tokens == examples.MASK
    assert masked[0].any() and not commits.steps[masked].any() and commits.steps[1, -20:].all()


def test_the_picture_has_a_colour_for_each_step(loaded, tmp_path):
    pipe, inputs = loaded
    commits = canvas.Commits()
    with mmaccel.accelerate(pipe, canvas.FactorCommit()) as fast:
        fast(**inputs, threshold=2, callback_on_step_end=commits)
    commits.save(tmp_path / "commits.png", pipe.tokenizer, row=1)
    drawn = commits.picture(pipe.tokenizer, row=1)
    colours = {colour for _, colour in drawn.getcolors(2**20)}
    assert (68, 1, 84) in colours and (253, 231, 37) in colours, "the first and the last step"
    assert (tmp_path / "commits.png").stat().st_size > 1000


def test_what_was_not_watched_is_said(loaded):
    pipe, inputs = loaded
    commits = canvas.Commits()
    with pytest.raises(SettingError, match="no run was watched yet; call the pipeline with callback_on_step_end"):
        commits.words(pipe.tokenizer)
    pipe(**inputs, gen_length=4, callback_on_step_end=commits)
    with pytest.raises(SettingError, match="row=2: rows 0 to 1 were watched"):
        commits.picture(pipe.tokenizer, row=2)


def test_the_command_draws_it(tmp_path, capsys):
    path = tmp_path / "commits.png"
    assert cli.main(["run", "canvas", "--example", "--gen-length", "32", "--trace", str(path)]) == 0
    told = capsys.readouterr().out
    assert path.stat().st_size > 1000 and "passes" in told and told.endswith(f"\nwrote {path}\n")
    assert cli.main(["run", "canvas", "--example", "--trace", str(tmp_path / "commits.doc")]) == 2
    assert "cannot write a picture as 'commits.doc'" in capsys.readouterr().err
