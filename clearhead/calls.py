"""`public`: a call with an argument that is not there is answered with a sentence, which names the right word.

Python itself says that `attend() got an unexpected keyword argument 'is_causal'`. Someone who comes from PyTorch or
Hugging Face wants to know what it is called here. The words of others are in one table, `WORDS`.

>>> import clearhead as ch
>>> ch.Attention(512, num_heads=8)
Traceback (most recent call last):
...
clearhead.errors.ArgumentError: Attention has no argument 'num_heads': write heads=8

`CodeRepr`: specs print as the Python expression that makes them, with the defaults left out.

>>> ch.positions.Rotary(), ch.Heads(8, kv=2), ch.masks.causal() & ch.masks.padding([3, 5])
(Rotary(), Heads(8, kv=2), causal() & padding([3, 5]))

`repr` is that expression on one line. `print` breaks a long one into indented lines, which are the same expression:

>>> print(ch.presets.gpt2("small"))
DecoderSpec(
    vocabulary=50257,
    d_model=768,
    blocks=(
        BlockSpec(
            attention=AttentionSpec(heads=Heads(12, kv=12, bias=True), dropout=0.1),
            feed_forward=GELU(3072, form='tanh'),
            dropout=0.1,
        ),
    ) * 12,
    embedding=Embedding(position=Learned(1024), scaled=False, dropout=0.1),
)
"""

import dataclasses
import functools
import inspect
import numbers
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from torch import Tensor

from clearhead.errors import ArgumentError, ClearheadError, nearest

Public = TypeVar("Public", bound=Callable[..., Any])

SIZE = "size=ch.presets.Size(n_layers, d_model, n_heads, n_kv_heads, d_ff)"
RULES, SAMPLE = "rules=ch.Rules({})", "method=ch.Sample({})"
WORDS: Mapping[str, Mapping[str, str]] = {
    "num_heads n_heads nhead n_head num_attention_heads": {
        "heads": "",
        "count": "",
        "size": SIZE,
        "attention": "attention=ch.model.AttentionSpec(heads=8)",
    },
    "num_kv_heads n_kv_heads num_key_value_heads kv_heads": {
        "kv": "",
        "heads": "heads=ch.Heads(8, kv=2)",
        "size": SIZE,
    },
    "enable_gqa": {"key": "nothing: key and value may have fewer heads than query, which share them"},
    "head_dim d_k dim_head": {"d_head": "", "heads": "heads=ch.Heads(8, d_head=64)"},
    "vdim d_v": {"d_value": "", "heads": "heads=ch.Heads(8, d_value=64)"},
    "bias qkv_bias use_bias": {"heads": "heads=ch.Heads(8, bias=True)"},
    "is_causal causal": {"mask": "mask=ch.masks.causal()", "attention": "nothing: a decoder's attention is causal"},
    "attn_mask attention_mask src_mask tgt_mask": {
        "lengths": "lengths=…, how many tokens each row has",
        "source_lengths": "source_lengths=…, how many tokens each source has",
        "mask": "mask=…, in which True means that the query may attend",
    },
    "key_padding_mask src_key_padding_mask padding_mask": {
        "lengths": "lengths=…, how many tokens each row has",
        "source_lengths": "source_lengths=…, how many tokens each source has",
        "mask": "mask=ch.masks.padding(lengths)",
    },
    "need_weights average_attn_weights return_weights output_attentions": {
        "query": "nothing: `explain`, with the same arguments, returns the weights and every other step",
        "query_source": "nothing: `explain`, with the same arguments, returns the weights and every other step",
        "tokens": "nothing: ch.tracing.trace_model(model, tokens) has the weights of every head",
        "target": "nothing: ch.trace and ch.tracing.trace_model have the weights of every head",
    },
    "dropout_p attn_dropout attention_dropout attn_pdrop p": {"dropout": ""},
    "scale softmax_scale": {"similarity": "similarity=ch.similarity.ScaledDot(0.125)", "factor": ""},
    "q": {"query": ""},
    "k": {"key": ""},
    "v": {"value": ""},
    "embed_dim d_model dim hidden_size n_embd embedding_dim": {"d_model": "", "size": SIZE},
    "n_layers num_layers n_layer num_hidden_layers depth num_encoder_layers num_decoder_layers": {
        "blocks": "blocks=(block,) * 6",
        "size": SIZE,
    },
    "dim_feedforward intermediate_size ffn_dim d_ff n_inner": {"d_ff": "", "size": SIZE},
    "vocab_size n_vocab num_embeddings num_tokens": {"vocabulary": ""},
    "max_len max_seq_len max_position_embeddings block_size n_positions n_ctx": {
        "length": "",
        "context": "",
    },
    "batch_first": {"mask": "nothing: the batch is always the first axis"},
    "norm_first": {"arrangement": "arrangement=ch.model.PreNorm()"},
    "activation": {"feed_forward": "feed_forward=ch.model.GELU(2048)"},
    "eps": {"epsilon": ""},
    "input_ids ids tokens prompt_ids": {"inputs": "", "source": ""},
    "text texts prompt prompts sentence sentences lines": {
        "texts": "",
        "prompts": "",
        "prompt": "",
        "source": "",
    },
    "max_new_tokens max_length max_tokens max_new": {
        "max_new": "",
        "rules": RULES.format("max_new=50"),
    },
    "min_new_tokens min_length min_new": {"min_new": "", "rules": RULES.format("max_new=50, min_new=5")},
    "eos_token_id eos end": {"end": "", "rules": RULES.format("max_new=50, end=(2,)")},
    "no_repeat_ngram_size": {"no_repeat": "", "rules": RULES.format("max_new=50, no_repeat=3")},
    "repetition_penalty": {"rules": RULES.format("max_new=50, repetition_penalty=1.2")},
    "presence_penalty": {"rules": RULES.format("max_new=50, presence_penalty=0.5")},
    "frequency_penalty": {"rules": RULES.format("max_new=50, frequency_penalty=0.5")},
    "logit_bias sequence_bias": {"logit_bias": "", "rules": RULES.format("max_new=50, logit_bias=((7, -5.0),)")},
    "num_beams beam_size n_beams beam_width beams": {
        "beam": "",
        "width": "",
        "method": "method=ch.Beam(width=5), of ch.generate",
    },
    "num_return_sequences": {"n_best": "", "beam": "`translations`, with n_best=3"},
    "do_sample": {"method": SAMPLE.format("")},
    "temperature": {"method": SAMPLE.format("temperature=0.8")},
    "top_k": {"method": SAMPLE.format("top_k=50")},
    "top_p": {"method": SAMPLE.format("top_p=0.9")},
    "seed": {"method": SAMPLE.format("seed=0")},
    "learning_rate": {"lr": "", "optimizer": "optimizer=ch.training.Optimizer(lr=1e-3)"},
    "num_epochs n_epochs max_epochs num_train_epochs": {
        "epochs": "",
        "budget": "budget=ch.training.Budget(epochs=3)",
    },
    "max_steps num_steps n_steps": {"steps": "", "budget": "budget=ch.training.Budget(steps=1000)"},
    "batch_size": {
        "tokens": "tokens=4096: a batch is counted in tokens",
        "batching": "batching=ch.training.Batching(tokens=4096): a batch is counted in tokens",
    },
    "output_dir out_dir folder": {"path": ""},
    "format": {"to": ""},
}
"""Words of others; for each argument of ours that a function may have, what to write instead: "" for its value."""


def public(target: Public) -> Public:
    """Answer calls of a function, or of a class, that do not fit its arguments with an ArgumentError.

    A function's call costs a tenth of a microsecond more: nothing is looked at before it. Where it raises an error that
    is not Clearhead's, its arguments are compared with its signature. A dataclass compares its fields when it is made,
    since a wrong one would be an error much later.
    """
    if not isinstance(target, type):
        return cast(Public, answer_calls(target))
    maker = "__new__" if issubclass(target, tuple) else "__init__"
    if maker in vars(target) and not hasattr(vars(target)[maker], "answered"):
        made = answer_calls(getattr(target, maker), check_fields(target))
        setattr(target, maker, staticmethod(made) if maker == "__new__" else made)
    return cast(Public, target)


def answer_calls(function: Callable[..., Any], check: Callable[[Any], None] | None = None) -> Callable[..., Any]:
    """Return the function with its wrong calls answered; `check` is called with what was made."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            returned = function(*args, **options)
            if check is not None:
                check(args[0] if returned is None else returned)
            return returned
        except ClearheadError:
            raise
        except Exception as error:
            # Python's own error for a call that does not fit has no frame below this one.
            inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            problem = describe_misfit(function, args, options) if inside else None
            if inside and problem is None:
                raise
            problem, cause = problem or describe_problem(function, args, options), error if inside else None
        raise ArgumentError(problem) from cause

    call.__dict__["answered"] = True
    return call


def check_fields(cls: type) -> Callable[[Any], None] | None:
    """Return a function that raises for a field of another type than its annotation says; None for other classes."""
    if dataclasses.is_dataclass(cls):
        hints = {field.name: field.type for field in dataclasses.fields(cls) if field.init}
    elif issubclass(cls, tuple):
        hints = vars(cls)["__annotations__"]
    else:
        return None
    known = [(name, hint, classes_of(hint), items_of(hint)) for name, hint in hints.items()]
    known = [entry for entry in known if entry[2] is not None]

    def check(made: Any) -> None:
        if type(made) is not cls:  # a class derived from it may have other fields
            return
        for name, hint, classes, items in known:
            value = getattr(made, name)
            if not fits(value, classes, items):
                raise ArgumentError(f"{cls.__name__}: {name} must be {shown_hint(hint)}; came {value!r:.80}")

    return check


def fits(value: Any, classes: tuple | None, items: tuple | None) -> bool:
    """Check a value's type, and those of its items. True is no number here: `vocabulary=True` is a slip."""
    # Plain `tuple`: to check one item of a longer annotation the tests' beartype draws at random, and parts are made
    # inside hypothesis's strategies, which allow no other randomness.
    if classes is None:
        return True
    if not isinstance(value, classes) or (isinstance(value, bool) and bool not in classes):
        return False
    return items is None or not isinstance(value, tuple | list) or all(isinstance(item, items) for item in value)


NUMBERS: Mapping[Any, tuple[type, ...]] = {
    None: (type(None),),
    bool: (bool, numbers.Integral),
    int: (numbers.Integral,),
    float: (numbers.Real,),
    tuple: (tuple, list),
    list: (tuple, list),
}


def classes_of(hint: Any) -> tuple[type, ...] | None:
    """Return the classes that an annotation allows; None if it says nothing that `isinstance` could check."""
    origin = typing.get_origin(hint)
    if isinstance(hint, dataclasses.InitVar):
        return classes_of(hint.type)
    if isinstance(hint, TypeVar):
        return None if hint.__bound__ is None else classes_of(hint.__bound__)
    if origin is typing.Literal:
        return tuple({type(value) for value in typing.get_args(hint)})
    if origin in (typing.Union, types.UnionType):
        parts = [classes_of(part) for part in typing.get_args(hint)]
        return None if None in parts else tuple(cls for part in parts for cls in part or ())
    hint = getattr(hint, "array_type", origin or hint)  # that of an annotation of jaxtyping's
    if hint in NUMBERS:
        return NUMBERS[hint]
    unchecked = not isinstance(hint, type) or hint in (object, Any) or getattr(hint, "_is_protocol", False)
    return None if unchecked else (hint,)


def items_of(hint: Any) -> tuple[type, ...] | None:
    """Return the classes of the items of a sequence, where its annotation says them."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    items: tuple[type, ...] = ()
    for part in typing.get_args(hint) if union else (hint,):
        if typing.get_origin(part) in (tuple, list, Sequence):
            kinds = [classes_of(kind) for kind in typing.get_args(part) if kind is not ...]
            if None in kinds:
                return None
            items += tuple(cls for kind in kinds for cls in kind or ())
    return items or None


def describe_misfit(function: Callable[..., Any], args: Sequence[object], options: Mapping[str, object]) -> str | None:
    """Say which argument of a call is not what its annotation says; None if all are."""
    signature = inspect.signature(function)
    for key, given in signature.bind(*args, **options).arguments.items():
        parameter = signature.parameters[key]
        hint = parameter.annotation
        if hint is parameter.empty:
            continue
        for value in given if parameter.kind is parameter.VAR_POSITIONAL else (given,):
            if not fits(value, classes_of(hint), items_of(hint)):
                return f"{name_of_call(function)}: {key} must be {shown_hint(hint)}; came {value!r:.80}"
    return None


def shown_hint(hint: Any) -> str:
    """Return an annotation without the modules of its names: `Mask | Tensor | None`."""
    named = hint.__bound__ if isinstance(hint, TypeVar) else getattr(hint, "type", hint)
    return re.sub(r"(\w+\.)+", "", inspect.formatannotation(named).replace("NoneType", "None"))


def name_of_call(function: Callable[..., Any]) -> str:
    name = function.__qualname__.rpartition("<locals>.")[2]
    return name.removesuffix(".__init__").removesuffix(".__new__")


def describe_problem(function: Callable[..., Any], args: Sequence[object], options: Mapping[str, object]) -> str:
    """Say which argument of a call is not there, is missing, or was given twice."""
    name, parameters = name_of_call(function), dict(inspect.signature(function).parameters)
    if next(iter(parameters), "") in ("self", "_cls"):
        parameters.pop(next(iter(parameters)))
        args = args[1:]
    by_place = [key for key, parameter in parameters.items() if parameter.kind != parameter.KEYWORD_ONLY]
    for option in options:
        if option not in parameters:
            return f"{name} has no argument {option!r}: {suggest(option, options[option], list(parameters))}"
    if len(args) > len(by_place):
        others = ", ".join(f"{key}=…" for key in parameters if key not in by_place)
        by_name = f"; give the others by name: {others}" if others else ""
        plural = "" if len(by_place) == 1 else "s"
        counted = f"{len(by_place)} positional argument{plural}" + (f" ({', '.join(by_place)})" if by_place else "")
        return f"{name} takes {counted}; came {len(args)}{by_name}"
    if twice := [key for key in by_place[: len(args)] if key in options]:
        return f"{name}: {twice[0]} is given twice, by its place and by its name"
    needed = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
    missing = [key for key in needed if key not in options and key not in by_place[: len(args)]]
    return f"{name} needs {' and '.join(missing)}; came without"


def suggest(option: str, value: object, parameters: Sequence[str]) -> str:
    """Say what to write in place of an argument that there is not."""
    shown = repr(value) if isinstance(value, int | float | str) and len(repr(value)) < 30 else "…"
    for words, arguments in WORDS.items():
        if option not in words.split():
            continue
        for key, text in arguments.items():
            if key in parameters:
                leave_out = text.startswith("nothing:")
                return text.replace("nothing:", "leave it out;") if leave_out else f"write {text or f'{key}={shown}'}"
    if near := nearest(option, parameters):
        return f"write {near}={shown}"
    return f"it takes {', '.join(parameters)}" if parameters else "it takes none"


WIDTH = 88
"""The most characters in a line of a printed spec, if it can be broken."""


class CodeRepr:
    """Base class of specs: frozen dataclasses whose `repr` is the expression that makes them.

    A first field without a default is given by position, the others by name. Code that evaluates such an expression
    needs the names of `clearhead.masks`, `.positions`, … that occur in it.
    """

    made_by: ClassVar[str] = ""
    """The function that makes it, where that is not the class: `causal()` makes a `Causal`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # `@dataclass` writes a `__repr__` unless the class has one in its own namespace. So each class is given the one
        # it inherits: this one, or that of nn.Module for a built part.
        cls.__repr__ = cls.__repr__

    def __repr__(self) -> str:
        return render(self, sys.maxsize) if is_dataclass(self) else super().__repr__()

    def __str__(self) -> str:
        return render(self, WIDTH)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show a notebook and IPython what `print` shows."""
        printer.text(repr(self) if cycle else str(self))


class Repeated(NamedTuple):
    """Equal specs that follow each other in a tuple."""

    item: object
    times: int


class Bracket(NamedTuple):
    """An expression with others inside it, each after a prefix: `name=` or `*`."""

    opening: str
    inner: list[tuple[str, object]]
    closing: str


def render(value: object, room: int, before: str = "") -> str:
    """Return the expression of a value after what stands `before` it, in lines of no more characters than `room`."""
    if isinstance(value, Tensor):
        return f"{before}torch.{' '.join(repr(value).split())}"
    bracket = find_bracket(value)
    if bracket is None:
        return f"{before}{value!r}"
    inner = ", ".join(render(item, sys.maxsize, prefix) for prefix, item in bracket.inner)
    comma = "," if bracket.opening == "(" and len(bracket.inner) == 1 else ""
    line = f"{before}{bracket.opening}{inner}{comma}{bracket.closing}"
    if len(line) <= room or not bracket.inner:
        return line
    # Inside, four characters go to the indent and one to the comma.
    lines = [f"{render(item, room - 5, prefix)},\n" for prefix, item in bracket.inner]
    return f"{before}{bracket.opening}\n{textwrap.indent(''.join(lines), ' ' * 4)}{bracket.closing}"


def find_bracket(value: object) -> Bracket | None:
    """Return what an expression can be broken into; None for one that stays on its line."""
    if isinstance(value, Repeated):
        return Bracket("(", [("", value.item)], f") * {value.times}")
    if type(value) is tuple:
        specs = all(isinstance(item, CodeRepr) for item in value)
        runs = [Repeated(item, len(list(run))) for item, run in groupby(value)] if specs else []
        if len(runs) == 1 and runs[0].times > 1:
            return find_bracket(runs[0])
        folded = [("*", run) if run.times > 1 else ("", run.item) for run in runs]
        return Bracket("(", folded or [("", item) for item in value], ")")
    if isinstance(value, CodeRepr) and type(value).__repr__ is CodeRepr.__repr__ and is_dataclass(value):
        return Bracket(f"{type(value).made_by or type(value).__name__}(", list(find_arguments(value)), ")")
    return None


def find_arguments(spec: Any) -> Iterator[tuple[str, object]]:
    """Yield the fields of a spec that are not at their default, each after its name where it is given by name."""
    made_from = [field for field in fields(spec) if field.init]
    for field in made_from:
        by_position = field is made_from[0] and not field.kw_only and not has_default(field)
        if field.repr and not is_default(spec, field):
            yield "" if by_position else f"{field.name}=", getattr(spec, field.name)


def has_default(field: "Field[Any]") -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def is_default(spec: object, field: "Field[Any]") -> bool:
    """Return whether a field of a dataclass has its default value."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    # `is True`: a comparison of tensors is a tensor, and says nothing here.
    return default is not MISSING and (getattr(spec, field.name) == default) is True
