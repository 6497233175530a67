"""The BERT family: encoders with a norm after each branch, learned positions, and segments.

MiniLM is a BERT. RoBERTa begins its positions after the number of its padding token, which takes none wherever it
stands; DistilBERT has other names and no segments. Each is read to fill blanks, to classify, or bare, to embed: there
the pooler is no part of the vectors, and is kept for an export alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clearhead.attention.heads import Heads
from clearhead.attention.positions import Learned
from clearhead.interop.architectures import base
from clearhead.interop.tables import Config, TensorRow, expand
from clearhead.model import Blanks, Classes, Embedding, EncoderSpec, FeedForward, LayerNorm, Output, PostNorm
from clearhead.model.blocks import AttentionSpec, BlockSpec
from clearhead.model.sizes import Spec

EPSILON = 1e-12
BLOCK = "stack.blocks.{i}"
POOLER = (".position_ids", "pooler.dense.weight", "pooler.dense.bias")
"""Ends of the names of tensors that these models may have and do not need: numbers of positions, and the pooler."""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """What the configurations of the family call the same things."""

    d_model: str = "hidden_size"
    n_layers: str = "num_hidden_layers"
    n_heads: str = "num_attention_heads"
    d_ff: str = "intermediate_size"
    activation: str = "hidden_act"
    dropout: str = "hidden_dropout_prob"
    attention_dropout: str = "attention_probs_dropout_prob"
    epsilon: str = "layer_norm_eps"


@dataclass(frozen=True, kw_only=True)
class BertMember:
    """One model of the family."""

    name: str
    model: str
    prefix: str
    names: Fields = Fields()
    segments: bool = True
    offset: bool = False
    """Whether padding takes no position, and the first position's row is the one after `pad_token_id`."""
    relu: bool = False
    """Whether the classifier's hidden map is followed by ReLU, and not by tanh."""
    gelu: bool = False
    """Whether the output for blanks has GELU whatever the blocks have."""
    block: tuple[TensorRow, ...]
    """The rows of a block."""
    outputs: Mapping[str, tuple[TensorRow, ...]]
    """The rows of the output for each task; the table of the one for blanks is the embedding's."""
    copies: Mapping[str, str]
    """Tensors of the output for blanks that files may hold a second time."""
    ignored: tuple[str, ...] = POOLER
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Second names of fields."""

    @property
    def classes(self) -> dict[str, str]:
        return {
            f"{self.model}ForMaskedLM": "fill",
            f"{self.model}ForSequenceClassification": "classify",
            f"{self.model}Model": "embed",
        }

    def padding(self, config: Config) -> int | None:
        """Return the id of the token that takes no position, and whose number is that of the row before the first."""
        return next(iter(config.tokens("pad_token_id")), 1) if self.offset else None

    def position(self, config: Config) -> Learned:
        skips = self.padding(config)
        first = 0 if skips is None else skips + 1
        length = config.count("max_position_embeddings") - first
        if length < 1:
            raise config.error("max_position_embeddings", f"no position is left after the first {first}")
        return Learned(length, first=first, skips=skips)

    def read_spec(self, config: Config) -> EncoderSpec:
        config.require("position_embedding_type", "absolute")
        config.require("is_decoder", False)
        config.require("add_cross_attention", False)
        names = self.names
        epsilon = config.number(names.epsilon, EPSILON) if names.epsilon else EPSILON
        feed_forward = config.choose(names.activation, base.ACTIVATIONS, "gelu")
        block = BlockSpec(
            attention=AttentionSpec(heads=Heads(config.count(names.n_heads), bias=True)),
            feed_forward=feed_forward(config.count(names.d_ff)),
            arrangement=PostNorm(LayerNorm(epsilon)),
        )
        return EncoderSpec(
            vocabulary=config.count("vocab_size"),
            d_model=config.count(names.d_model),
            blocks=(block,) * config.layers(names.n_layers),
            embedding=Embedding(
                position=self.position(config),
                scaled=False,
                norm=LayerNorm(epsilon),
                segments=config.count("type_vocab_size", 2) if self.segments else None,
            ),
            output=self.read_output(config, epsilon),
        )

    def read_output(self, config: Config, epsilon: float) -> Output | None:
        task = config.task(self.classes)
        if task == "fill":
            config.require("tie_word_embeddings", True)
            if not self.gelu:
                config.require(self.names.activation, "gelu")
            return Blanks(epsilon=epsilon)
        if task == "classify":
            config.require("problem_type", "single_label_classification")
            return Classes(config.count_labels(), hidden=True, activation="relu" if self.relu else "tanh")
        return None

    def write_fields(self, model: Spec, context: int) -> dict[str, Any]:
        spec = base.expect(model, EncoderSpec, "the model")
        names, block = self.names, spec.blocks[0]
        position = base.expect(spec.embedding.position, Learned, "embedding.position")
        arrangement = base.expect(block.arrangement, PostNorm, "arrangement")
        return {
            **self.write_output(spec.output),
            "vocab_size": spec.vocabulary,
            names.d_model: spec.d_model,
            names.n_layers: len(spec.blocks),
            names.n_heads: base.expect_heads(block.attention).count,
            names.d_ff: base.expect(block.feed_forward, FeedForward, "feed_forward").d_ff,
            names.activation: base.name_activation(block.feed_forward),
            names.dropout: block.dropout,
            names.attention_dropout: block.attention.dropout,
            **({names.epsilon: base.expect(arrangement.norm, LayerNorm, "norm").epsilon} if names.epsilon else {}),
            "max_position_embeddings": position.first + position.length,
            **({"pad_token_id": position.first - 1} if self.offset and position.first else {}),
            **({"type_vocab_size": spec.embedding.segments or 1} if self.segments else {}),
        }

    def write_output(self, output: Output | None) -> dict[str, Any]:
        if output is None:
            return {"architectures": [f"{self.model}Model"]}
        if isinstance(output, Blanks):
            return {"architectures": [f"{self.model}ForMaskedLM"], "tie_word_embeddings": output.tied}
        labels = {str(i): f"LABEL_{i}" for i in range(base.expect(output, Classes, "output").count)}
        return {"architectures": [f"{self.model}ForSequenceClassification"], "id2label": labels}

    def list_rows(self, config: Config) -> list[TensorRow]:
        embeddings = f"{self.prefix}embeddings"
        segments = TensorRow(f"{embeddings}.token_type_embeddings.weight", ("embedding.segment",))
        return [
            TensorRow(f"{embeddings}.word_embeddings.weight", ("embedding.table",)),
            TensorRow(f"{embeddings}.position_embeddings.weight", ("embedding.position.table",)),
            *([segments] if self.segments else []),
            *base.norm("embedding.norm", f"{embeddings}.LayerNorm"),
            *expand(self.block, config.layers(self.names.n_layers)),
            *self.outputs.get(config.task(self.classes), ()),
        ]


def bert_block(prefix: str) -> tuple[TensorRow, ...]:
    layer = f"{prefix}encoder.layer.{{i}}"
    names = "self.query self.key self.value output.dense"
    return (
        *base.attention(f"{BLOCK}.attention", f"{layer}.attention", names),
        *base.norm(f"{BLOCK}.around_attention.norm", f"{layer}.attention.output.LayerNorm"),
        *base.pairs(f"{BLOCK}.feed_forward.up", f"{layer}.intermediate.dense"),
        *base.pairs(f"{BLOCK}.feed_forward.down", f"{layer}.output.dense"),
        *base.norm(f"{BLOCK}.around_feed_forward.norm", f"{layer}.output.LayerNorm"),
    )


def distilbert_block(prefix: str) -> tuple[TensorRow, ...]:
    layer = f"{prefix}transformer.layer.{{i}}"
    return (
        *base.attention(f"{BLOCK}.attention", f"{layer}.attention", "q_lin k_lin v_lin out_lin"),
        *base.norm(f"{BLOCK}.around_attention.norm", f"{layer}.sa_layer_norm"),
        *base.pairs(f"{BLOCK}.feed_forward.up", f"{layer}.ffn.lin1"),
        *base.pairs(f"{BLOCK}.feed_forward.down", f"{layer}.ffn.lin2"),
        *base.norm(f"{BLOCK}.around_feed_forward.norm", f"{layer}.output_layer_norm"),
    )


def outputs(dense: str, last_norm: str, bias: str, hidden: str, classes: str) -> dict[str, tuple[TensorRow, ...]]:
    """Return the rows of both outputs: the names of the maps and the norm, and of the bias on the logits of tokens."""
    fill = (
        *base.pairs("output.transform.0", dense),
        *base.norm("output.transform.2", last_norm),
        TensorRow(bias, ("output.bias",)),
    )
    return {"fill": fill, "classify": (*base.pairs("output.hidden", hidden), *base.pairs("output.out", classes))}


def roberta(name: str, model: str) -> BertMember:
    return BertMember(
        name=name,
        model=model,
        prefix="roberta.",
        offset=True,
        gelu=True,
        block=bert_block("roberta."),
        outputs=outputs(
            "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "classifier.dense", "classifier.out_proj"
        ),
        copies={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    )


MEMBERS = (
    BertMember(
        name="bert",
        model="Bert",
        prefix="bert.",
        block=bert_block("bert."),
        outputs=outputs(
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
            "bert.pooler.dense",
            "classifier",
        ),
        copies={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        # Published models that fill blanks kept the map by which BERT also learned which sentence comes next.
        ignored=(*POOLER, "cls.seq_relationship.weight", "cls.seq_relationship.bias"),
    ),
    roberta("roberta", "Roberta"),
    roberta("xlm-roberta", "XLMRoberta"),
    BertMember(
        name="distilbert",
        model="DistilBert",
        prefix="distilbert.",
        names=Fields(
            d_model="dim",
            n_layers="n_layers",
            n_heads="n_heads",
            d_ff="hidden_dim",
            activation="activation",
            dropout="dropout",
            attention_dropout="attention_dropout",
            epsilon="",
        ),
        segments=False,
        relu=True,
        block=distilbert_block("distilbert."),
        outputs=outputs("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "pre_classifier", "classifier"),
        aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    ),
)


def make_architecture(member: BertMember) -> base.Architecture:
    return base.Architecture(
        model_type=member.name,
        classes=member.classes,
        spec=member.read_spec,
        rows=member.list_rows,
        fields=member.write_fields,
        context=lambda config: member.position(config).length,
        prefix=member.prefix,
        copies=lambda config: member.copies,
        ignored=member.ignored,
        aliases=member.aliases,
        causal=False,
        computed=(".position_ids",),
    )


BERT_FAMILY = tuple(make_architecture(member) for member in MEMBERS)
