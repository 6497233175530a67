"""Models that `transformers` saved, imported as runs: every verb, and its answers are those of `transformers`."""

import hashlib
import json
import math
import shutil
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import clearhead as ch
from clearhead.errors import ClearheadError, DataError, OptionError, RunError
from clearhead.interop.export import export
from clearhead.interop.run import fetch_from_hub, ignored_settings, import_model
from clearhead.interop.tables import Config
from clearhead.model.int8 import SCALE, count_weights, dequantize, int8_maps
from clearhead.model.lora import Lora
from clearhead.text.batches import Rows
from clearhead.text.encoding import Corpus
from clearhead.text.sources import Documents
from clearhead.text.store import StoreWriter
from clearhead.text.tokenizer import Tokenizer
from clearhead.training.checkpoints import UNTRAINED
from clearhead.training.fine_tuning import fine_tuning_recipe
from clearhead.training.folder import RunFolder
from clearhead.training.recipe import Origin
from clearhead.training.tasks.generate import Detokenizer
from clearhead.training.train import train
from tests.interop import saved_models
from tests.interop.saved_models import DECODERS, Pair, draw_texts

PROMPTS = ("the cat sat on", "Der Hund, größer 😀, the window in the rain opens to the sea, the cat")
TALK = [
    {"role": "system", "content": "  Be brief. "},
    {"role": "user", "content": "Who sat on the mat?"},
    {"role": "assistant", "content": "the cat"},
    {"role": "user", "content": "größer 😀 <s>?"},
]


@pytest.fixture(scope="module", params=DECODERS)
def pair(request, tmp_path_factory):
    return Pair(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return Pair("llama", tmp_path_factory.mktemp("llama"))


def peer_writes(pair, ids, **options):
    """What `transformers` writes after these ids, greedily."""
    made = pair.peer.generate(torch.tensor([ids]), do_sample=False, **options)
    return made[0, len(ids) :].tolist()


@pytest.mark.slow
@torch.no_grad()
def test_greedy_ids_are_those_of_transformers(pair):
    for prompt in PROMPTS:
        ids = pair.tokenizer(prompt)["input_ids"]
        row = pair.exact.tokenizer.encode(prompt)
        [[mine]] = pair.exact.task.continue_rows(pair.exact.model, [row], ch.Greedy(), max_new=64)
        assert list(mine.tokens) == peer_writes(pair, ids, max_new_tokens=64), prompt


@torch.no_grad()
def test_an_end_token_ends_the_text(pair, monkeypatch):
    """The ninth token that is written is made the one that ends."""
    task, row = pair.exact.task, pair.exact.tokenizer.encode(PROMPTS[0])
    [[whole]] = task.continue_rows(pair.exact.model, [row], ch.Greedy(), max_new=64)
    frame = task.frame()
    framing = type(frame)(before=frame.before, ends=(whole.tokens[8],))
    [[short]] = task.continue_rows(pair.exact.model, [row], ch.Greedy(), max_new=64, framing=framing)
    theirs = peer_writes(
        pair, pair.tokenizer(PROMPTS[0])["input_ids"], max_new_tokens=64, eos_token_id=whole.tokens[8], pad_token_id=0
    )
    assert list(short.tokens) == theirs


def test_text_is_what_transformers_decodes(pair):
    for prompt in PROMPTS:
        [text] = pair.run.generate([prompt], max_new=20, method=ch.Greedy())
        if pair.name != "llama":  # a byte that makes no character with the next one changes what was said before it
            assert "".join(pair.run.stream(prompt, max_new=20, method=ch.Greedy())) == text
        ids = pair.run.tokenizer.encode(prompt)
        [[tokens]] = pair.run.task.continue_rows(pair.run.model, [ids], ch.Greedy(), max_new=20)
        both, first = (pair.tokenizer.decode(some, skip_special_tokens=True) for some in ([*ids, *tokens.tokens], ids))
        assert first + text == both


def test_of_a_text_past_the_context_the_end_is_read_after_what_stands_before(pair):
    task = pair.exact.task
    ids = pair.exact.tokenizer.encode("the cat sat on the mat, größer " * 30)
    assert len(ids) > task.context
    [[found]] = task.continue_rows(pair.exact.model, [ids], ch.Greedy(), max_new=10)
    read = task.context - 10
    before = list(task.frame().before)
    seen = [*before, *ids[len(before) - read :]]
    assert len(seen) == read
    assert list(found.tokens) == peer_writes(pair, seen, max_new_tokens=10)


def test_from_nothing_it_begins_with_the_models_own_token(pair):
    [[found]] = pair.exact.task.continue_rows(pair.exact.model, [[]], ch.Greedy(), max_new=20)
    start = pair.peer.config.bos_token_id
    assert list(found.tokens) == peer_writes(pair, [start], max_new_tokens=20)


@torch.no_grad()
def test_perplexity_is_that_of_transformers(pair, tmp_path):
    text = "\n".join(saved_models.TEXTS[:3])
    file = tmp_path / "test.txt"
    file.write_text(text, encoding="utf-8")
    found = pair.exact.evaluate(Documents(paths=(str(file),), unit="file"))
    ids = pair.exact.tokenizer.encode(text)
    assert len(ids) < pair.exact.task.context
    first = pair.peer.config.bos_token_id
    logits = pair.peer(torch.tensor([[first, *ids]])).logits[0, :-1]
    if not pair.exact.task.frame().before:  # GPT-2 reads a text as it is: only its first token is asked from the start
        logits[1:] = pair.peer(torch.tensor([ids])).logits[0, :-1]
    nats = torch.nn.functional.cross_entropy(logits, torch.tensor(ids)).item()
    assert found["loss"] == pytest.approx(nats, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(nats), rel=1e-5)
    assert found["tokens"] == len(ids)


def test_documents_to_train_on_begin_as_transformers_begins_them(llama, tmp_path):
    """Each begins with the model's start token, which it was trained with, and ends with its end token."""
    tokenizer, task = llama.run.tokenizer, llama.run.task
    texts = [tokenizer.encode(text) for text in ("the cat", "a window", "Der Hund")]
    with StoreWriter(tmp_path / "store", {"text": tokenizer.vocabulary}) as writer:
        for ids in texts:
            writer.add({"text": [*ids, tokenizer.end]}, {"text": 1})
        store = writer.close({})
    rows = Rows(np.zeros(1, np.int64), sum(map(len, texts)) + 2, 1)
    batch = task.read(store, rows, np.random.default_rng(0), filled=False)
    [start] = task.frame().before
    assert start == llama.peer.config.bos_token_id
    assert batch["tokens"][0].tolist() == [*texts[0], start, *texts[1], start, *texts[2]]
    wanted = [*texts[0], tokenizer.end, *texts[1], tokenizer.end, *texts[2], tokenizer.end]
    assert batch["wanted"][0].tolist() == wanted[1:]
    assert batch["documents"][0].tolist() == [i for i, ids in enumerate(texts) for _ in range(len(ids) + (i > 0))]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_character_of_several_tokens_is_streamed_whole(kind):
    tokenizer = Tokenizer(saved_models.TOKENIZERS[kind]().backend_tokenizer.to_str())
    for text in ("the 😀中é€ größer👩‍👩‍👧 cat", "中中😀", "€", *draw_texts(5, 40)):
        ids = tokenizer.encode(text)
        spoken = Detokenizer(tokenizer)
        pieces = [spoken.add(token) for token in ids]
        assert not any("\ufffd" in piece for piece in pieces), text
        assert "".join(pieces) + spoken.rest() == tokenizer.decode(ids)


@torch.no_grad()
def test_a_trace_has_the_weights_of_transformers(pair):
    traced = ch.trace(pair.run, PROMPTS[0])
    ids = torch.tensor([pair.tokenizer(PROMPTS[0])["input_ids"]])
    side = traced.sides["decoder"]
    assert [*side.ids] == ids[0].tolist()
    eager = type(pair.peer)(pair.peer.config)
    eager.load_state_dict(pair.peer.state_dict())
    eager.set_attn_implementation("eager")
    theirs = eager.double().eval()(ids, output_attentions=True)
    for layer, weights in enumerate(theirs.attentions):
        for head in range(weights.shape[1]):
            mine = traced.decoder[layer].attention.head[head].weight
            assert torch.allclose(mine.double(), weights[0, head], atol=1e-5), (layer, head)
    best = theirs.logits[0, -1].softmax(-1)
    assert traced.candidates[-1][0].id == int(best.argmax())
    assert math.exp(traced.candidates[-1][0].log_prob) == pytest.approx(best.max().item(), abs=1e-5)


def test_ablating_a_head_changes_the_answer_as_zeroing_it_in_transformers(llama):
    edit = ch.Edit(at="decoder.1.attention", head=2, step="context", to=0.0)
    made = ch.trace(llama.run, PROMPTS[0], edits=[edit])
    d_head = llama.peer.config.head_dim
    peer = type(llama.peer)(llama.peer.config)
    peer.load_state_dict(llama.peer.state_dict())
    peer.double().eval()
    with torch.no_grad():
        peer.model.layers[1].self_attn.o_proj.weight[:, 2 * d_head : 3 * d_head] = 0
        theirs = peer(torch.tensor([llama.tokenizer(PROMPTS[0])["input_ids"]])).logits[0, -1].softmax(-1)
    assert made.candidates[-1][0].id == int(theirs.argmax())
    assert math.exp(made.candidates[-1][0].log_prob) == pytest.approx(theirs.max().item(), abs=1e-5)


def test_a_conversation_is_rendered_and_answered_as_by_transformers(llama):
    text = llama.run.chat_text(TALK)
    assert text == llama.tokenizer.apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    ids = llama.tokenizer.apply_chat_template(TALK, add_generation_prompt=True)["input_ids"]
    assert llama.run.tokenizer.encode(text) == ids
    reply = llama.exact.chat(TALK, max_new=30, method=ch.Greedy())
    theirs = peer_writes(llama, ids, max_new_tokens=30)
    both = llama.tokenizer.decode([*ids, *theirs], skip_special_tokens=True)
    assert both == llama.tokenizer.decode(ids, skip_special_tokens=True) + reply
    assert next(llama.exact.stream_reply(TALK, max_new=1, method=ch.Greedy())) == reply[:1]


def test_a_run_without_a_template_is_told(llama, tmp_path):
    (tmp_path / "source").mkdir()
    for file in llama.source.iterdir():
        if file.name != "chat_template.jinja":
            shutil.copy(file, tmp_path / "source")
    run = import_model(tmp_path / "source", tmp_path / "run", device="cpu")
    with pytest.raises(OptionError, match="has no chat template: its model was not trained to talk"):
        run.chat(TALK)


def test_bfloat16_weights_are_kept_and_used_as_such(llama, tmp_path):
    import_model(llama.source, tmp_path / "run", dtype="bfloat16", device="cpu")
    run = ch.load(tmp_path / "run", device="cpu")
    assert {one.dtype for one in run.model.parameters()} == {torch.bfloat16}
    for name, one in run.model.named_parameters():
        assert torch.equal(one, llama.run.model.get_parameter(name).bfloat16())
    assert run.generate(["the cat"], max_new=10, method=ch.Greedy())
    assert ch.trace(run, "the cat sat").candidates
    sizes = [sum(file.stat().st_size for file in folder.rglob("model.safetensors")) for folder in run_paths(run, llama)]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.slow
def test_int8_weights_are_kept_and_used_as_such(pair, tmp_path):
    import_model(pair.source, tmp_path / "run", dtype="int8", device="cpu")
    run, plain = (ch.load(tmp_path / "run", device="cpu") for _ in range(2))
    dequantize(plain.model)
    origin = run.folder.origin()
    assert isinstance(origin, Origin)
    assert (origin.dtype, origin.parameters) == ("int8", count_weights(run.model))
    assert origin.parameters == sum(one.numel() for one in pair.peer.parameters())
    names = int8_maps(run.model.state_dict())
    assert names
    for name in names:  # no number is further off than half a step of its row
        weight = pair.run.model.get_submodule(name).weight
        assert ((plain.model.get_submodule(name).weight - weight).abs() <= weight.abs().amax(1)[:, None] / 253).all()
    for verb in (lambda run: run.generate(["the cat"], max_new=10, method=ch.Greedy()), written_by_steps):
        assert verb(run) == verb(plain)
    traced, peer = (ch.trace(one, "the cat sat").decoder[1].attention.head[0].weight for one in (run, plain))
    torch.testing.assert_close(traced, peer, atol=1e-5, rtol=1e-4)
    run.save(tmp_path / "again")
    again = ch.load(tmp_path / "again", device="cpu")
    assert int8_maps(again.model.state_dict()) == names
    assert written_by_steps(again) == written_by_steps(run)


def written_by_steps(run):
    return "".join(run.stream("the cat", max_new=10, method=ch.Greedy()))


@pytest.mark.slow
def test_int8_weights_are_exported_and_fine_tuned_as_rounded(llama, tmp_path):
    run = import_model(llama.source, tmp_path / "run", dtype="int8", device="cpu")
    export(run, to="hf", path=tmp_path / "hf")
    assert int8_maps(run.model.state_dict())  # the run itself is as it was
    back = import_model(tmp_path / "hf", tmp_path / "back", device="cpu")
    for name, one in dequantize(run.model).named_parameters():
        assert torch.equal(one, back.model.get_parameter(name)), name
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 200)
    corpus = Corpus(train=Documents(paths=(str(tmp_path / "text.txt"),), unit="line"))
    recipe = fine_tuning_recipe(tmp_path / "run", corpus, lora=Lora(rank=2))
    recipe = replace(recipe, budget=replace(recipe.budget, steps=3), batching=replace(recipe.batching, context=32))
    tuned = train(tmp_path / "tuned", recipe)
    for name, one in run.model.named_parameters():  # only what LoRA stands beside has moved
        moved = not torch.equal(one, tuned.model.get_parameter(name))
        assert not moved or ".query." in name or ".value." in name, name


@pytest.mark.parametrize("change", ["shape of scale", "missing scale", "nan"])
def test_damaged_int8_weights_are_refused(llama, tmp_path, change):
    import_model(llama.source, tmp_path / "run", dtype="int8", device="cpu")
    run = ch.load(tmp_path / "run", device="cpu")
    [checkpoint] = run.folder.checkpoints.all()
    tensors = load_file(checkpoint.folder / "model.safetensors")
    scale = next(name for name in tensors if name.endswith(SCALE))
    if change == "missing scale":
        del tensors[scale]
    else:
        tensors[scale] = tensors[scale][:-1].clone() if change == "shape of scale" else tensors[scale] * float("nan")
    shutil.rmtree(checkpoint.folder)
    run.folder.checkpoints.save(0, tensors, {}, {**UNTRAINED, "finished": True})
    with pytest.raises(RunError, match=r"a number for each of the|differ in|no numbers"):
        ch.load(tmp_path / "run", device="cpu")


def run_paths(run, pair):
    return run.folder.path, pair.run.folder.path


def test_a_shorter_context_can_be_asked_for(llama, tmp_path):
    run = import_model(llama.source, tmp_path / "run", context=32, device="cpu")
    assert run.task.context == ch.load(tmp_path / "run").task.context == 32
    for context in (0, 201):
        with pytest.raises(OptionError, match="context: the model reads 1 to 200 tokens"):
            import_model(llama.source, tmp_path / "other", context=context)


def test_the_folder_says_where_it_is_from(pair):
    origin = pair.run.folder.origin()
    assert isinstance(origin, Origin)
    assert origin.source == str(pair.source)
    assert (origin.task, origin.dtype) == (pair.run.task.name, "float32")
    assert origin.parameters == sum(one.numel() for one in pair.peer.parameters())
    assert not (pair.run.folder.path / "data").exists()
    told = pair.run.folder.read_description()
    assert told["data"] is None


def test_an_imported_run_is_not_resumed(pair):
    with pytest.raises(RunError, match=r"was imported from .*clearhead train NEW --from"):
        ch.training.resume(pair.run.folder.path)


def test_nothing_is_left_of_an_import_that_fails(llama, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    place = tmp_path / "new" / "run"
    with pytest.raises(OptionError, match="there is no such folder"):
        import_model(tmp_path / "nothing", place)
    with pytest.raises(OptionError, match="dtype: 'float16' cannot be imported; there are float32, bfloat16"):
        import_model(llama.source, place, dtype="float16")
    with pytest.raises(OptionError, match="task: there is no 'dance'"):
        import_model(llama.source, place, task="dance")
    with pytest.raises(ClearheadError, match="names no mask_token, so there is no way to ask for a blank"):
        import_model(llama.source, place, task="fill")
    monkeypatch.setattr("clearhead.training.checkpoints.save_file", full)
    with pytest.raises(RunError, match=r"run: the run could not be written, and nothing was left there .*No space"):
        import_model(llama.source, place)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_folder_is_told_from_the_folder(llama, tmp_path):
    with pytest.raises(OptionError, match=r"config\.json: is one file of a model, .* give its folder, .*source"):
        import_model(llama.source / "config.json", tmp_path / "run")


def test_a_folder_that_is_there_is_not_touched(llama, tmp_path):
    (tmp_path / "run").mkdir()
    import_model(llama.source, tmp_path / "run", device="cpu")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError, match="there is something already; choose another folder"):
        import_model(llama.source, tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before


def test_weights_that_are_no_numbers_are_refused(llama, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(llama.source, tmp_path / "source")
    tensors = load_file(tmp_path / "source" / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, tmp_path / "source" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(OptionError, match=r"values that are no numbers .*, in stack\.norm\.gamma"):
        import_model(tmp_path / "source", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("place", "changes", "message"),
    [
        ("framing text", {"before": [9999]}, "framing: text: before: the id 9999 is not one of"),
        ("framing text", {"before": "x"}, "framing: text.before: expected"),
        ("framing text", {"is": "Recipe"}, "Recipe"),
        ("framing other", {}, "framing: other"),
        ("special tokenizer.json", {"vocabulary": 9}, "has the id 399, and its model has only 9 rows"),
        ("special tokenizer.json", {"end": 999}, "end: the id 999 is not one of the model's"),
        ("special tokenizer.json", {"vocabulary": 500}, "has another vocabulary"),
    ],
)
def test_a_changed_description_is_refused(llama, tmp_path, place, changes, message):
    """With a checksum that fits: even what this program could have written must not lead it astray."""
    shutil.copytree(llama.run.folder.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    told = {name: one for name, one in folder.read_own(folder.model_file).items() if name not in ("sha256", "format")}
    field, name = place.split()
    there = next(iter(told[field].values()))
    folder.write_own(folder.model_file, {**told, field: {**told[field], name: {**there, **changes}}})
    with pytest.raises((RunError, DataError), match=message):
        ch.load(tmp_path / "run")


def test_a_changed_chat_template_is_refused(llama, tmp_path):
    shutil.copytree(llama.run.folder.path, tmp_path / "run")
    (tmp_path / "run" / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(RunError, match=r"chat_template\.jinja: was changed since the run began"):
        ch.load(tmp_path / "run").chat(TALK)


def test_texts_are_framed_as_transformers_does(pair):
    for text in draw_texts(11, 40):
        row = pair.run.tokenizer.encode(text)
        assert pair.run.task.frame().around(row) == pair.tokenizer(text)["input_ids"]


def test_generation_config_says_what_ends_a_text(llama, tmp_path):
    shutil.copytree(llama.source, tmp_path / "source")
    path = tmp_path / "source" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [5, 2]}))
    run = import_model(tmp_path / "source", tmp_path / "run", device="cpu")
    assert run.task.frame().ends == (5, 2)
    path.unlink()
    run = import_model(tmp_path / "source", tmp_path / "again", device="cpu")
    assert run.task.frame().ends == (2,)


def test_settings_of_decoding_that_are_not_taken_over_are_named():
    said = {"num_beams": 4, "top_k": 5, "repetition_penalty": 1.0, "bad_words_ids": [[7], [3, 4]], "max_length": 9}
    assert ignored_settings(Config(said, "x")) == ["num_beams=4", "bad_words_ids=[[3, 4]]"]
    assert ignored_settings(Config({"do_sample": True, "top_k": 5}, "x")) == ["do_sample=True", "top_k=5"]
    assert ignored_settings(Config({"temperature": 0.3, "eos_token_id": [1, 2]}, "x")) == []


def test_an_import_says_which_settings_of_decoding_it_leaves(tmp_path):
    saved_models.save("gpt2", tmp_path / "theirs")
    path = tmp_path / "theirs" / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "repetition_penalty": 1.3}))
    lines = []
    import_model(tmp_path / "theirs", tmp_path / "run", log=lines.append)
    [line] = lines
    assert line.endswith("asks to decode with repetition_penalty=1.3, which a run does not keep: give them as options")


COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/tiny"


class Hub(BaseHTTPRequestHandler):
    """The addresses that `huggingface_hub` asks for: what a repository holds, and its files."""

    folder = None
    asked: list[str]

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        files = sorted(file for file in self.folder.rglob("*") if file.is_file())
        names = {file.relative_to(self.folder).as_posix(): file.read_bytes() for file in files}
        if path.startswith(f"/api/models/{REPOSITORY}/revision/"):
            self.reply_json({"id": REPOSITORY, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]})
        elif path.startswith(f"/api/models/{REPOSITORY}/tree/{COMMIT}"):
            self.reply_json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in names.items()
                ]
            )
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
            data = names[path.rpartition("/")[2]]
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            self.reply(200, data, {"ETag": etag, "X-Repo-Commit": COMMIT})
        else:
            self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def reply_json(self, told):
        self.reply(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def reply(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args):
        """Says nothing."""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server with one repository; the class that answers has what was asked."""
    handler = type("Answering", (Hub,), {"folder": tmp_path / "source", "asked": []})
    saved_models.save("llama", handler.folder)
    (handler.folder / "README.md").write_text("a card")
    (handler.folder / "pytorch_model.bin").write_bytes(b"never fetched")
    (handler.folder / "onnx").mkdir()
    (handler.folder / "onnx" / "model.safetensors").write_bytes(b"never fetched")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    yield handler
    server.shutdown()
    thread.join(60)
    server.server_close()


@pytest.mark.slow
def test_a_model_is_fetched_and_imported(hub, tmp_path):
    run = import_model(f"hub:{REPOSITORY}", tmp_path / "run", device="cpu")
    assert run.folder.origin().source == f"hub:{REPOSITORY}"
    local = import_model(hub.folder, tmp_path / "local", device="cpu")
    for name, one in run.model.named_parameters():
        assert torch.equal(one, local.model.get_parameter(name))
    assert not any("README" in one or ".bin" in one or "onnx" in one for one in hub.asked)
    first = len(hub.asked)
    home = fetch_from_hub(f"hub:{REPOSITORY}@{COMMIT}", cache=tmp_path / "cache")
    assert (home / "config.json").exists()
    assert not any(one.startswith("GET /someone/tiny/resolve") for one in hub.asked[first:])


@pytest.mark.slow
def test_a_pickle_is_asked_for_only_where_there_is_nothing_else(hub, tmp_path):
    (hub.folder / "model.safetensors").unlink()
    home = fetch_from_hub(f"hub:{REPOSITORY}", cache=tmp_path / "other")
    assert (home / "pytorch_model.bin").exists()
    assert not (home / "README.md").exists()


@pytest.mark.slow
def test_what_is_not_there_is_told_and_leaves_nothing(hub, tmp_path):
    with pytest.raises(OptionError, match="hub:someone/else: could not be fetched"):
        import_model("hub:someone/else", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["", "a/b/c", "../x", "a b", "https://example.org/x", "a/b@"])
def test_what_is_no_name_is_not_asked_for(name, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OptionError, match="expected hub:ORG/NAME, such as"):
        fetch_from_hub(f"hub:{name}")
