"""The training film: which steps are kept, that a resume keeps the same, and that nothing in it ends a training."""

import errno
import os
from dataclasses import replace

import pytest
import torch

from clearhead.errors import RunError
from clearhead.files import replacing
from clearhead.training import film as film_module
from clearhead.training.checkpoints import named_tensors
from clearhead.training.film import EXACT, Film, FilmCamera, frame_bytes, is_small
from clearhead.training.recipe import Budget, Checkpointing
from clearhead.training.resume import resume
from clearhead.training.run import load
from clearhead.training.train import train
from tests.training import small_runs
from tests.training.tiny import quiet, recipe_for


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("film")


@pytest.fixture(scope="module")
def recipe(home):
    checkpointing = Checkpointing(log=5, evaluate=5, checkpoints=4, score_records=0, samples=0)
    return recipe_for(small_runs.translating, home / "text", budget=Budget(steps=10), checkpointing=checkpointing)


@pytest.fixture(scope="module")
def run(home, recipe):
    return train(home / "run", recipe, log=quiet)


def weights(run):
    return {name: one.detach().clone() for name, one in named_tensors(run.model).items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_frames_are_of_step_0_and_powers_of_two_apart_from_checkpoints(run):
    assert run.folder.film.steps() == [0, 1, 2, 4, 8]
    assert sorted(one.step for one in run.folder.checkpoints.all()) == [5, 10]
    assert sorted(os.listdir(run.folder.film.folder)) == [f"step-{n:08d}.safetensors" for n in (0, 1, 2, 4, 8)]


@pytest.mark.slow
def test_a_frame_is_loaded_as_a_checkpoint_is(run, recipe, home):
    """The frame of step 8 has the numbers of a checkpoint that is saved at step 8."""
    saving = replace(recipe, checkpointing=replace(recipe.checkpointing, save=8, film=False))
    other = train(home / "saving", saving, log=quiet)
    assert other.folder.film.steps() == []
    loaded = load(run.folder.path, step=8)
    assert loaded.step == 8
    assert same(weights(loaded), weights(load(other.folder.path, step=8)))
    assert not same(weights(loaded), weights(load(run.folder.path, step=0)))


def test_the_frame_of_step_0_is_the_model_before_training(run, recipe):
    first = weights(load(run.folder.path, step=0))
    torch.manual_seed(recipe.seed)
    assert same(first, named_tensors(run.folder.spec().build()))


@pytest.mark.slow
def test_a_run_that_goes_on_for_longer_has_frames_spread_alike(run, recipe, home):
    short = train(home / "longer", replace(recipe, budget=Budget(steps=5)), log=quiet).folder.film
    assert short.steps() == [0, 1, 2, 4]
    first = short.load(0)
    resume(home / "longer", budget=Budget(steps=10), log=quiet)
    assert short.steps() == run.folder.film.steps()
    assert same(short.load(0), first)
    assert same(first, run.folder.film.load(0))


@pytest.mark.slow
def test_a_resumed_run_has_the_film_of_one_that_was_never_stopped(run, recipe, home):
    """The last checkpoint is lost, so steps from the fifth on are trained again, and their frames taken again."""
    again = train(home / "again", recipe, log=quiet)
    film, expected = again.folder.film, {step: run.folder.film.load(step) for step in run.folder.film.steps()}
    (film.folder / ".step-00000016.safetensors.0123abcd.partial").write_bytes(b"half")
    film.write(16, expected[0])  # of a training that was gone on with further, and lost
    damaged = again.folder.checkpoints.folder / "step-00000010" / "model.safetensors"
    damaged.write_bytes(b"")
    resume(again.folder.path, log=quiet)
    assert film.steps() == [0, 1, 2, 4, 8]
    assert all(same(film.load(step), expected[step]) for step in expected)
    assert not any(name.startswith(".") for name in os.listdir(film.folder))


@pytest.mark.slow
def test_a_full_disk_leaves_out_a_frame_and_never_ends_the_training(recipe, home, monkeypatch):
    def full(path, tensors, about):
        if about["step"] in ("2", "4"):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, tensors, about)

    write, said = film_module.write_tensors, []
    monkeypatch.setattr(film_module, "write_tensors", full)
    run = train(home / "full", recipe, log=said.append)
    assert run.step == 10
    assert run.folder.film.steps() == [0, 1, 8]
    assert sorted(os.listdir(run.folder.film.folder)) == [f"step-{n:08d}.safetensors" for n in (0, 1, 8)]
    assert [line for line in said if "No space left" in line and "training goes on without this frame" in line] != []


def test_a_film_that_cannot_be_made_at_all_is_only_told(recipe, tmp_path, run):
    said = []
    (tmp_path / "film").write_text("a file where the folder should be")
    camera = FilmCamera(Film(tmp_path / "film"), lambda: {"a": torch.ones(2)}, asked=None, log=said.append)
    camera.begin(0)
    assert len(said) == 1
    assert "could not be written" in said[0]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    FilmCamera(Film(tmp_path / "link"), lambda: {"a": torch.ones(2)}, asked=True, log=said.append).take(1)
    assert "nothing is written through links" in said[1]
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.slow
def test_only_a_film_that_is_small_is_made_without_being_asked_for(tmp_path):
    def frames(asked):
        film = Film(tmp_path / str(asked))
        camera = FilmCamera(film, lambda: {"a": torch.zeros(1).expand(7_000_000)}, asked=asked, log=quiet)
        camera.begin(0)
        return film.steps()

    assert is_small(6_000_000)
    assert not is_small(7_000_000)
    assert (frames(None), frames(True), frames(False)) == ([], [0], [])
    size = (tmp_path / "True" / "step-00000000.safetensors").stat().st_size
    assert 0 <= size - frame_bytes(7_000_000) < 1000


def test_a_large_model_is_kept_in_bfloat16_and_loaded_in_float32(tmp_path):
    film, exact = Film(tmp_path / "film", run="a"), torch.rand(EXACT + 1)
    film.write(1, {"a": exact, "n": torch.arange(3)})
    film.write(2, {"a": exact[:10], "n": torch.arange(3)})
    loaded = film.load(1)
    assert loaded["a"].dtype == torch.float32
    assert torch.equal(loaded["a"], exact.bfloat16().float())
    assert torch.equal(loaded["n"], torch.arange(3))
    assert torch.equal(film.load(2)["a"], exact[:10])


def test_weights_that_are_not_finite_are_no_frame(tmp_path):
    film = Film(tmp_path / "film")
    FilmCamera(film, lambda: {"a": torch.tensor([1.0, float("nan")])}, asked=True, log=quiet).take(4)
    assert film.steps() == []


def test_files_that_are_no_frames_of_the_run_are_left_out_and_refused_by_name(run, tmp_path):
    film, other = run.folder.film, Film(tmp_path / "film", run="another")
    other.write(2, {"a": torch.ones(2)})
    mine = Film(tmp_path / "film", run=film.run)
    assert mine.steps() == []
    with pytest.raises(RunError, match=r"is of another run\. Remove it"):
        mine.load(2)
    other.path(2).rename(other.path(4))
    with pytest.raises(RunError, match="holds step 2, so it was renamed"):
        other.load(4)
    other.write(8, {"a": torch.ones(2)})
    data = bytearray(other.path(8).read_bytes())
    data[-1] ^= 1
    with replacing(other.path(8)) as partial:
        partial.write_bytes(bytes(data))
    with pytest.raises(RunError, match="its checksum is wrong"):
        other.load(8)
    other.path(8).write_bytes(b"")
    assert other.steps() == []
    with pytest.raises(RunError, match="cannot be read"):
        other.load(8)


def test_a_step_that_is_nowhere_is_refused_with_those_there_are(run):
    with pytest.raises(RunError, match=r"no checkpoint of step 3; there are 5, 10; the film has 0, 1, 2, 4, 8"):
        load(run.folder.path, step=3)


@pytest.mark.slow
def test_a_run_without_a_film_loads_as_before(run, home, recipe):
    plain = train(home / "plain", replace(recipe, checkpointing=replace(recipe.checkpointing, film=False)), log=quiet)
    assert not (plain.folder.path / "film").exists()
    assert same(weights(plain), weights(load(run.folder.path)))
    assert plain.folder.recipe().checkpointing.film is False
    assert run.folder.recipe().checkpointing.film is None


@pytest.mark.slow
def test_a_kill_where_a_frame_and_a_checkpoint_meet_leaves_neither_alone(run, recipe, home, monkeypatch):
    """Every step is saved. The training ends just before the fourth step's frame would be written."""

    class Killed(BaseException):
        pass

    saving = replace(recipe, checkpointing=replace(recipe.checkpointing, save=1))
    with monkeypatch.context() as patch:
        take = FilmCamera.take

        def stop_at_four(camera, step):
            if step == 4:
                raise Killed
            take(camera, step)

        patch.setattr(FilmCamera, "take", stop_at_four)
        with pytest.raises(Killed):
            train(home / "killed", saving, log=quiet)
    assert resume(home / "killed", log=quiet).folder.film.steps() == [0, 1, 2, 4, 8]
