"""Tokenizers and tiny random models as `transformers` saves them, for tests of what is imported."""

import json
import random

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

import clearhead as ch
from clearhead.interop.run import import_model
from tests.model.copying import randomised
from tests.peers import late

(
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BertTokenizerFast,
    DistilBertConfig,
    DistilBertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2TokenizerFast,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaTokenizerFast,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
    T5TokenizerFast,
) = late(
    "transformers",
    "AutoTokenizer",
    "BartConfig",
    "BartForConditionalGeneration",
    "BertConfig",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
    "BertTokenizerFast",
    "DistilBertConfig",
    "DistilBertModel",
    "Gemma2Config",
    "Gemma2ForCausalLM",
    "GPT2Config",
    "GPT2LMHeadModel",
    "GPT2TokenizerFast",
    "LlamaConfig",
    "LlamaForCausalLM",
    "LlamaTokenizerFast",
    "M2M100Config",
    "M2M100ForConditionalGeneration",
    "MarianConfig",
    "MarianMTModel",
    "PreTrainedTokenizerFast",
    "RobertaConfig",
    "RobertaForMaskedLM",
    "RobertaTokenizerFast",
    "T5Config",
    "T5ForConditionalGeneration",
    "T5TokenizerFast",
)

TEXTS = [
    "the cat sat on the mat, and the größer dog ate 3.14 plums",
    "a window in the rain\nopens to the sea 😀 <tag> & more",
    "Der Hund, die Katze: ein Haus am See.",
] * 20
SPECIAL = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>"}
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m['content'] | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)


def trained(model, trainer, *, cut, normalizer=None, **options):
    """A tokenizer of the library's, trained on the texts."""
    made = Tokenizer(model)
    made.pre_tokenizer, made.normalizer = cut, normalizer
    made.train_from_iterator(TEXTS, trainer(show_progress=False, **options))
    return made


def parts_of(tokenizer):
    """The vocabulary and the merges that a class of `transformers` is made from."""
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model.get("merges", [])]


def byte_level(special, size=340):
    return trained(
        models.BPE(),
        trainers.BpeTrainer,
        cut=pre_tokenizers.ByteLevel(add_prefix_space=False),
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )


def gpt2_tokenizer():
    vocabulary, merges = parts_of(byte_level(["<|endoftext|>"]))
    return GPT2TokenizerFast(vocab=vocabulary, merges=merges)


def roberta_tokenizer():
    vocabulary, merges = parts_of(byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    return RobertaTokenizerFast(vocab=vocabulary, merges=merges)


def llama_tokenizer():
    made = trained(
        models.BPE(byte_fallback=True, fuse_unk=True),
        trainers.BpeTrainer,
        cut=pre_tokenizers.Metaspace(split=False, prepend_scheme="first"),
        vocab_size=400,
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
    )
    vocabulary, merges = parts_of(made)
    return LlamaTokenizerFast(vocab=vocabulary, merges=merges, add_bos_token=True, chat_template=CHAT)


def bert_tokenizer():
    made = trained(
        models.WordPiece(unk_token="[UNK]"),
        trainers.WordPieceTrainer,
        cut=pre_tokenizers.BertPreTokenizer(),
        normalizer=normalizers.BertNormalizer(),
        vocab_size=120,
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    )
    return BertTokenizerFast(vocab=parts_of(made)[0])


def pieces(special):
    return trained(
        models.Unigram(),
        trainers.UnigramTrainer,
        cut=pre_tokenizers.Metaspace(),
        vocab_size=150,
        special_tokens=special,
        unk_token="<unk>",
    )


def t5_tokenizer():
    vocabulary = json.loads(pieces(["<pad>", "</s>", "<unk>"]).to_str())["model"]["vocab"]
    return T5TokenizerFast(vocab=[tuple(pair) for pair in vocabulary], extra_ids=5)


def unigram_tokenizer():
    """Closed by an end token, as a translator's texts are; with padding and truncation that are not for us."""
    made = pieces(["<pad>", "<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", made.token_to_id("</s>"))]
    )
    made.enable_padding(length=64)
    made.enable_truncation(5)
    names = {name: token for name, token in SPECIAL.items() if name != "mask_token"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def words_tokenizer():
    made = trained(
        models.WordLevel(unk_token="<unk>"),
        trainers.WordLevelTrainer,
        cut=pre_tokenizers.Whitespace(),
        vocab_size=60,
        special_tokens=list(SPECIAL.values()),
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)


def framed_bytes_tokenizer():
    """Bytes between two tokens, with a mask that takes the space before it, and a token that is no special one."""
    made = byte_level(list(SPECIAL.values()))
    made.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **SPECIAL)
    tokenizer.add_tokens(["ein Haus"])
    return tokenizer


TOKENIZERS = {
    "gpt2": gpt2_tokenizer,
    "roberta": roberta_tokenizer,
    "llama": llama_tokenizer,
    "bert": bert_tokenizer,
    "t5": t5_tokenizer,
    "unigram": unigram_tokenizer,
    "words": words_tokenizer,
    "framed bytes": framed_bytes_tokenizer,
}


def draw_texts(seed, count, special=()):
    """Texts of letters, signs, spaces of every kind and emoji, with special tokens written out in some."""
    draw = random.Random(seed)
    signs = [
        *"abcdetheDH .,<>/&\n\t_'\"",
        *"äöüßéñçŁ中文日本語ابجд",
        *"😀👩‍👩‍👧🇩🇪\u200b\u00a0\u3000\u2028\u0301\x00\ufeff▁Ġ",
        *(" the", " cat", "ing ", "  ", " 3.14", "größer", "ein Haus"),
        *special,
    ]
    yield from ("", " ", "\n", "  two  spaces  ")
    for _ in range(count):
        yield "".join(draw.choices(signs, k=draw.randint(1, 24)))


def gpt2_model(vocabulary, tokenizer):
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config)


def llama_model(vocabulary, tokenizer):
    config = LlamaConfig(
        vocab_size=vocabulary,
        max_position_embeddings=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def encoder_of(model_class, config_class, **options):
    """What makes an encoder of the BERT family."""

    def make(vocabulary, tokenizer):
        config = config_class(
            vocab_size=vocabulary,
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=40,
            max_position_embeddings=70,
            type_vocab_size=2,
            pad_token_id=tokenizer.pad_token_id,
            **options,
        )
        return model_class(config)

    return make


def distilbert_model(vocabulary, tokenizer):
    config = DistilBertConfig(
        vocab_size=vocabulary, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=60, pad_token_id=0
    )
    return DistilBertModel(config)


def translator_of(model_class, config_class, forced=None, **options):
    """What makes a Marian or a BART; `forced` is the token that every output begins with."""

    def make(vocabulary, tokenizer):
        config = config_class(
            vocab_size=vocabulary,
            d_model=24,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=3,
            decoder_attention_heads=3,
            encoder_ffn_dim=40,
            decoder_ffn_dim=40,
            max_position_embeddings=50,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            forced_eos_token_id=None,
            **options,
        )
        made = model_class(config)
        made.final_logits_bias.normal_()
        made.generation_config.max_length = made.generation_config.num_beams = None
        made.generation_config.forced_bos_token_id = forced
        return made

    return make


def marian_model(vocabulary, tokenizer):
    """Begins with padding, which it may not write."""
    pad = tokenizer.pad_token_id
    made = translator_of(MarianMTModel, MarianConfig, decoder_start_token_id=pad, decoder_vocab_size=vocabulary)(
        vocabulary, tokenizer
    )
    made.generation_config.bad_words_ids = [[pad]]
    made.final_logits_bias[:, pad] = 50.0
    return made


def t5_model(vocabulary, tokenizer):
    config = T5Config(
        vocab_size=vocabulary,
        d_model=24,
        d_kv=8,
        d_ff=40,
        num_layers=2,
        num_heads=3,
        n_positions=40,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    return T5ForConditionalGeneration(config)


def m2m100_model(vocabulary, tokenizer):
    """Counts its positions after padding; every output begins with a token, as NLLB's with a language."""
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in TRANSLATOR.items()}
    config = M2M100Config(
        vocab_size=vocabulary, d_model=24, max_position_embeddings=50, decoder_start_token_id=3, **sides, **special
    )
    made = M2M100ForConditionalGeneration(config)
    made.generation_config.max_length = made.generation_config.num_beams = None
    made.generation_config.forced_bos_token_id = 5
    return made


TRANSLATOR = {"layers": 2, "attention_heads": 3, "ffn_dim": 40}


def gemma2_model(vocabulary, tokenizer):
    """With capped scores and logits, a window in every second layer and four norms a block."""
    config = Gemma2Config(
        vocab_size=vocabulary,
        max_position_embeddings=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        query_pre_attn_scalar=8,
        intermediate_size=48,
        sliding_window=5,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=5.0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Gemma2ForCausalLM(config)


LABELS = {0: "plum", 1: "cat", 2: "window"}
DECODERS = {"gpt2": ("gpt2", gpt2_model), "llama": ("llama", llama_model)}
LATER = {"gemma2": ("llama", gemma2_model), "m2m100": ("unigram", m2m100_model)}
"""Only for what goes back: their tokenizers are those of others."""
FILLERS = {
    "bert": ("bert", encoder_of(BertForMaskedLM, BertConfig)),
    "roberta": ("roberta", encoder_of(RobertaForMaskedLM, RobertaConfig)),
}
CLASSIFIERS = {"classifier": ("bert", encoder_of(BertForSequenceClassification, BertConfig, id2label=LABELS))}
EMBEDDERS = {"embedder": ("bert", encoder_of(BertModel, BertConfig)), "distilbert": ("bert", distilbert_model)}
TRANSLATORS = {
    "marian": ("unigram", marian_model),
    "bart": (
        "framed bytes",
        translator_of(BartForConditionalGeneration, BartConfig, forced=2, decoder_start_token_id=3),
    ),
    "bart unforced": (
        "framed bytes",
        translator_of(BartForConditionalGeneration, BartConfig, decoder_start_token_id=3),
    ),
    "t5": ("t5", t5_model),
}
MODELS = {**DECODERS, **FILLERS, **CLASSIFIERS, **EMBEDDERS, **TRANSLATORS, **LATER}
"""By name: the tokenizer, and what makes a model with so many rows and the tokenizer's special ids."""


class Pair:
    """A model of `transformers` and its tokenizer; the folder they were saved in; the run that it was imported as."""

    def __init__(self, name, home):
        self.name, self.source = name, home / "source"
        self.peer, _ = save(name, self.source)
        self.tokenizer = AutoTokenizer.from_pretrained(self.source)
        import_model(self.source, home / "run", device="cpu")
        self.run = ch.load(home / "run", device="cpu")
        self.exact = ch.load(home / "run", device="cpu")  # in float64, where ties are not decided by rounding
        self.peer.double()
        self.exact.model.double()


def save(name, folder, *, seed=0, rows=7):
    """A random model and its tokenizer, saved in a folder; its table has `rows` more than the tokenizer has tokens."""
    kind, make = MODELS[name]
    tokenizer = TOKENIZERS[kind]()
    torch.manual_seed(seed)
    model = randomised(make(len(tokenizer) + rows, tokenizer), torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.eval(), tokenizer
