"""The BERT family as `transformers` saves it, of odd configurations drawn at random: both segments, every head."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from clearhead.errors import OptionError
from clearhead.interop import read_hugging_face
from clearhead.interop.architectures import ARCHITECTURES
from clearhead.model import presets
from tests.covering import few
from tests.interop.peers import goes_back, same_states, save, tapped
from tests.peers import transformers
from tests.rounding import assert_equal_but_rounding

KINDS = {"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "distilbert": "DistilBert"}
TASKS = {"fill": "ForMaskedLM", "classify": "ForSequenceClassification", "embed": "Model"}


def draw(kind, task, seed):
    torch.manual_seed(seed)
    rng = random.Random(f"{kind} {task} {seed}")
    name, heads = KINDS[kind], rng.choice([1, 2, 3])
    activation = rng.choice(["gelu", "relu", "gelu_new"]) if task != "fill" or "roberta" in kind else "gelu"
    sizes = (heads * rng.choice([4, 6]), rng.randint(1, 3), heads, rng.choice([7, 40]), activation)
    if kind == "distilbert":
        named = dict(zip(("dim", "n_layers", "n_heads", "hidden_dim", "activation"), sizes, strict=True))
    else:
        fields = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act")
        named = dict(zip(fields, sizes, strict=True))
        named |= {"layer_norm_eps": rng.choice([1e-12, 1e-3]), "type_vocab_size": rng.randint(1, 3)}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=rng.randint(11, 60),
        max_position_embeddings=rng.randint(20, 30),
        pad_token_id=rng.randint(0, 3),
        num_labels=rng.randint(2, 5),
        **named,
    )
    extra = {"add_pooling_layer": rng.random() < 0.5} if task == "embed" and kind != "distilbert" else {}
    return getattr(transformers, name + TASKS[task])(config, **extra)


@pytest.mark.parametrize("seed", few(range(3), 1))
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_it_is_read_and_goes_back(kind, task, seed, tmp_path):
    peer = save(draw(kind, task, seed), tmp_path)
    imported, built = goes_back(peer, tmp_path)
    config, model = peer.config, imported.model
    assert imported.task == task
    assert imported.context == config.max_position_embeddings - (config.pad_token_id + 1) * ("roberta" in kind)
    assert imported.labels == (tuple(config.id2label.values()) if task == "classify" else ())
    tokens = torch.randint(config.vocab_size, (3, 13))
    tokens[0, 4:6] = config.pad_token_id  # within a text it takes no position in RoBERTa, and one elsewhere
    lengths = torch.tensor([13, 5, 1])
    real = torch.arange(13) < lengths[:, None]
    tokens[~real] = config.pad_token_id
    asked, options = {"attention_mask": real.long(), "output_hidden_states": True}, {"lengths": lengths}
    if kind != "distilbert":
        asked["token_type_ids"] = options["segments"] = torch.randint(config.type_vocab_size, tokens.shape)
    theirs = peer(tokens, **asked)
    mine, values = tapped(model, tokens, **options)
    their_states = [torch.where(real[..., None], one, 0) for one in theirs.hidden_states]
    same_states(
        {name: torch.where(real[..., None], one, 0) for name, one in values.items() if one.ndim == 3}, their_states
    )
    answer = theirs.last_hidden_state if task == "embed" else theirs.logits
    assert_equal_but_rounding(
        mine if task == "classify" else mine[real], answer if task == "classify" else answer[real]
    )
    again = built(tokens, **asked)
    assert torch.equal(again.last_hidden_state if task == "embed" else again.logits, answer)


@torch.no_grad()
def test_a_text_without_segments_is_all_of_the_first(tmp_path):
    peer = save(draw("bert", "fill", 4), tmp_path)
    tokens = torch.randint(peer.config.vocab_size, (2, 9))
    assert_equal_but_rounding(read_hugging_face(tmp_path).model(tokens), peer(tokens).logits)


def test_names_of_published_files_are_read(tmp_path):
    """Norms called gamma and beta, a tied table twice, numbers of positions, and the map to the next sentence."""
    save(draw("bert", "fill", 1), tmp_path)
    expected = read_hugging_face(tmp_path).model.state_dict()
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    table = tensors["bert.embeddings.word_embeddings.weight"]
    extra = {
        "cls.predictions.decoder.weight": table.clone(),
        "bert.embeddings.position_ids": torch.arange(20)[None],
        "cls.seq_relationship.weight": torch.zeros(2, table.shape[1]),
        "cls.seq_relationship.bias": torch.zeros(2),
        "bert.pooler.dense.weight": torch.zeros(2, 2),
    }
    save_file({**old, **extra}, path)
    again = read_hugging_face(tmp_path).model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported yet; expected 'gelu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: 'relative_key' is not supported yet"),
        ({"is_decoder": True}, "is_decoder: True is not supported yet"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings: False is not supported yet"),
        ({"architectures": ["BertForQuestionAnswering"]}, "there are BertForMaskedLM, BertForSequenceClassification"),
        ({"type_vocab_size": 7}, r"token_type_embeddings.weight is \(., .*\), and in this model \(7, "),
    ],
    ids=str,
)
def test_a_field_that_is_not_supported_is_named(changes, message, tmp_path):
    save(draw("bert", "fill", 0), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(OptionError, match=message):
        read_hugging_face(tmp_path)


def test_names_of_classes_must_be_all_there(tmp_path):
    save(draw("bert", "classify", 0), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["id2label"] = {"0": "bad", "7": "good"}
    path.write_text(json.dumps(config))
    with pytest.raises(OptionError, match="id2label: expected a name for each class from 0 to 1"):
        read_hugging_face(tmp_path)


def test_what_it_cannot_say_is_named():
    with pytest.raises(
        OptionError, match=r"roberta cannot say spec.embedding.position.length = 512: its models have 510"
    ):
        ARCHITECTURES["roberta"].config_of(presets.bert("tiny", vocabulary=9))
    with pytest.raises(OptionError, match=r"bert cannot say spec.embedding.segments = None: its models have 1"):
        ARCHITECTURES["bert"].config_of(presets.bert("tiny", vocabulary=9))
