"""From a user's arguments to checked lists of token ids; every wrong request raises here."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from clearhead.decoding.rules import Rules, is_id
from clearhead.errors import OptionError
from clearhead.model.embedding import TokenEmbedding
from clearhead.model.outputs import ToVocabulary
from clearhead.model.transformers import Decoder, EncoderDecoder

Model = Decoder | EncoderDecoder
Row = Sequence[int]
"""Token ids of one sequence; a tensor of one axis is such a row too."""
Rows = Sequence[Sequence[int]] | Tensor
"""Token ids, a row for each sequence; rows may differ in length."""


@dataclass(frozen=True)
class Request:
    """Checked arguments of a decoding. `inputs` go to the encoder, if there is one; outputs go on from `prompts`."""

    model: Model
    inputs: list[list[int]]
    prompts: list[list[int]]

    @property
    def decoder(self) -> Decoder:
        return self.model.decoder


def make_request(model: Model, inputs: Row | Rows, prefix: Row | Rows | None, n_new: int) -> Request:
    """Return the request, after checking it for outputs of at most `n_new` tokens. One row may come without a list."""
    check_model(model)
    decoder = model.decoder
    rows = token_rows("inputs", inputs)
    if model.encoder is None:
        if prefix is not None:
            raise OptionError("prefix is for an encoder-decoder; a decoder goes on from its inputs: put it there")
        prompts = rows
    else:
        check_ids("inputs", rows, model.encoder.spec.vocabulary)
        check_length("inputs", rows, model.encoder.embedding, 0)
        prompts = prefixes(prefix, len(rows))
    name = "inputs" if prefix is None else "prefix"
    check_ids(name, prompts, decoder.spec.vocabulary)
    check_length(name, prompts, decoder.embedding, n_new)
    return Request(model, rows, prompts)


def check_request(
    model: Model, inputs: Row | Rows, prefix: Row | Rows | None, rules: Rules, candidates: int
) -> Request:
    if not isinstance(rules, Rules):
        raise OptionError(f"rules: expected Rules(max_new=…); came {rules!r:.80}")
    request = make_request(model, inputs, prefix, rules.max_new)
    vocabulary = request.decoder.spec.vocabulary
    biased = [token for token, _ in rules.logit_bias]
    for name, tokens in (("end", rules.end), ("never", rules.never), ("logit_bias", biased)):
        wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
        if wrong is not None:
            raise OptionError(f"{name}: ids go from 0 to {vocabulary - 1} in this vocabulary; there is {wrong}")
    if not is_id(candidates) or candidates < 0:
        raise OptionError(f"candidates is how many likeliest tokens to give, 0 or more; came {candidates!r:.80}")
    return request


def check_model(model: object) -> None:
    if not isinstance(model, Decoder | EncoderDecoder):
        raise OptionError(f"only a Decoder or an EncoderDecoder writes text; came {type(model).__name__}")
    decoder = model.decoder
    output = decoder.spec.output
    if not isinstance(decoder.output, ToVocabulary) and not (output.causal and output.by_position):
        raise OptionError(
            f"this decoder's output is {output}; to write text it must be NextToken, or one of your own that is causal "
            "and by_position"
        )
    if model.encoder is None and any(block.cross is not None for block in decoder.spec.blocks):
        raise OptionError(
            "this decoder has cross-attention and was given nothing to attend to: let its EncoderDecoder write"
        )


def prefixes(prefix: Row | Rows | None, count: int) -> list[list[int]]:
    if prefix is None:
        raise OptionError(
            "an encoder-decoder starts its output from a token: give prefix=[start], or a row for each source"
        )
    rows = token_rows("prefix", prefix)
    if len(rows) not in (1, count):
        raise OptionError(f"prefix: expected one row, or one for each of the {count} inputs; came {len(rows)}")
    return rows if len(rows) == count else rows * count


def is_row(rows: object) -> bool:
    """Check for the ids of one sequence, and not a list of several."""
    if isinstance(rows, Tensor):
        return rows.ndim == 1
    return isinstance(rows, Sequence) and len(rows) > 0 and is_id(rows[0])


def token_rows(name: str, rows: Row | Rows) -> list[list[int]]:
    if isinstance(rows, Tensor) and rows.is_meta:
        raise OptionError(f"{name}: expected token ids; came a tensor on the device meta, which holds no numbers")
    values = rows.tolist() if isinstance(rows, Tensor) else rows
    if not isinstance(values, Sequence):
        raise OptionError(f"{name}: expected token ids, one row or several; came {type(rows).__name__}")
    listed = []
    for row in [values] if is_row(rows) else values:
        if not isinstance(row, Sequence | Tensor):
            raise OptionError(f"{name}: expected rows of token ids; came {row!r:.40} among them")
        listed.append(row.tolist() if isinstance(row, Tensor) else list(row))
    for index, row in enumerate(listed):
        strange = [] if set(map(type, row)) <= {int} else [token for token in row if not is_id(token)]
        if strange:
            raise OptionError(f"{name}[{index}]: token ids are whole numbers; there is {strange[0]!r}")
        if not row:
            raise OptionError(f"{name}[{index}] is empty: there must be a token to go on from; give a start token")
    return listed


def check_ids(name: str, rows: list[list[int]], vocabulary: int) -> None:
    for index, row in enumerate(rows):
        if min(row, default=0) < 0 or max(row, default=0) >= vocabulary:
            wrong = next(token for token in row if not 0 <= token < vocabulary)
            raise OptionError(
                f"{name}[{index}]: ids go from 0 to {vocabulary - 1} in this vocabulary; there is {wrong}"
            )


def check_length(name: str, rows: list[list[int]], embedding: TokenEmbedding, n_new: int) -> None:
    """Check that the positions suffice. The last new token is never read, so it needs none."""
    n_positions = None if embedding.position is None else embedding.position.length
    if n_positions is None or not rows:
        return
    index, longest = max(enumerate(len(row) for row in rows), key=lambda pair: pair[1])
    if longest > n_positions:
        raise OptionError(
            f"{name}[{index}] has {longest} tokens, and this model has learned {n_positions} positions; shorten it"
        )
    if longest + n_new - 1 > n_positions:
        raise OptionError(
            f"{name}[{index}] has {longest} tokens, and with max_new = {n_new} there would be more than the "
            f"{n_positions} positions this model has learned; ask for at most {n_positions - longest + 1} new tokens"
        )
