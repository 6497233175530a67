"""Laws of decoding, for any model. Each gives the differences it finds: a broken one can be seen to find some."""

import random
from dataclasses import replace

import torch

from clearhead.decoding import Beam, Greedy, Rules, Sample
from tests.decoding.models import VOCABULARY
from tests.decoding.plain import Case, Found, all_unlike, apart, beam_search

RULES = Rules(max_new=4, end=(2, 7))
METHODS = (Greedy(), Sample(temperature=1.5, top_k=8, top_p=0.95, seeds=(5, 3, 8)), Beam(width=3, n_best=3))


def case_of(model, lengths=(3, 1, 5), vocabulary=VOCABULARY) -> Case:
    """Prompts of these lengths, beside sources of three more tokens if there is an encoder."""
    draw = random.Random(len(lengths))
    prompts, sources = (
        [[draw.randrange(vocabulary) for _ in range(length + more)] for length in lengths] for more in (0, 3)
    )
    return Case(model, prompts, sources if len(model.stacks) > 1 else None)


def steps_of(n_rows: int, n_steps: int, seed: int = 0) -> torch.Tensor:
    """Tokens to go on with, `(row, step)`."""
    return torch.randint(VOCABULARY, (n_rows, n_steps), generator=torch.Generator().manual_seed(seed))


def cached_is_uncached(case: Case) -> list[str]:
    """On caches, in a ragged batch, every step gives the logits that each row has alone, read anew as a whole."""
    return step_by_step(case, 5)


def cached_is_uncached_from_one_token(case: Case) -> list[str]:
    """Likewise from start tokens, where nothing is padded."""
    return step_by_step(case_of(case.model, (1, 1)), 3)


@torch.no_grad()
def step_by_step(case: Case, n_steps: int) -> list[str]:
    tokens = steps_of(len(case.prompts), n_steps)
    session, found = case.session(), []
    wanted = [case.logits(row, [tokens[row].tolist()])[0] for row in range(len(tokens))]
    for step in range(tokens.shape[1] + 1):
        found += apart(f"step {step}", session.logits, torch.stack([row[step] for row in wanted]))
        if step < tokens.shape[1]:
            session.extend(tokens[:, step])
    return found


@torch.no_grad()
def padded_is_unpadded(case: Case) -> list[str]:
    """Rows of one length, and the same beside a longer prompt and a longer source, which make padding of them."""
    whole, found = case_of(case.model, (2, 2)), []
    longer = case_of(case.model, (6,))
    ragged = Case(case.model, whole.prompts + longer.prompts, whole.sources and whole.sources + longer.sources)
    one, other, tokens = whole.session(), ragged.session(), steps_of(3, 2)
    assert one.caches.clock.common is not None
    assert other.caches.clock.common is None
    for step in range(2):
        found += apart(f"step {step}", other.logits[:2], one.logits)
        one.extend(tokens[:2, step])
        other.extend(tokens[:, step])
    return found + apart("the last step", other.logits[:2], one.logits)


def batched_is_single(case: Case) -> list[str]:
    """What comes of a sentence in a batch is what comes of it alone; a row for each method, another in the next."""
    found = []
    for row, method in enumerate(METHODS):
        if isinstance(method, Beam) and not searched(case, row).clear:
            continue
        own = replace(method, seeds=method.seeds[row : row + 1]) if isinstance(method, Sample) else method
        alone = case.only([row]).generate(own, RULES)[0]
        found += all_unlike(f"{type(method).__name__}, row {row}", case.generate(method, RULES)[row], alone)
    return found


def streamed_is_whole(case: Case) -> list[str]:
    found = []
    for method in METHODS[:2]:
        streamed = list(case.stream(method, RULES))
        for row, (whole,) in enumerate(case.generate(method, RULES)):
            mine = [token for token in streamed if token.sequence == row]
            if tuple(token.token for token in mine) != whole.tokens or mine[-1].ended != whole.ended:
                found.append(f"row {row}: {[token.token for token in mine]}, not {whole.tokens}")
            found += apart(f"row {row}", [token.log_prob for token in mine], whole.log_probs)
    return found


def narrowest_beam_is_greedy(case: Case) -> list[str]:
    beam = case.generate(Beam(width=1, length_penalty=0.0), RULES)
    pairs = enumerate(zip(beam, case.generate(METHODS[0], RULES), strict=True))
    return [said for row, (mine, wanted) in pairs for said in all_unlike(f"row {row}", mine, wanted)]


def scored_is_generated(case: Case) -> list[str]:
    """`score` gives an output the log-probabilities it was generated with, and those of a plain forward."""
    made = [case.generate(method, RULES) for method in METHODS]
    rows = [row for whole in made for row, hypotheses in enumerate(whole) for _ in hypotheses]
    outputs = [hypothesis for whole in made for hypotheses in whole for hypothesis in hypotheses]
    plain = plain_scores(case, rows, [list(output.tokens) for output in outputs])
    found = []
    for place, score in enumerate(case.only(rows).score([list(output.tokens) for output in outputs])):
        what = f"row {rows[place]}, {outputs[place].tokens}"
        found += apart(f"{what}, generated", outputs[place].log_probs, score.log_probs)
        found += apart(f"{what}, in a plain forward", plain[place], score.log_probs)
        found += apart(f"{what}, the sum", score.total, sum(plain[place]))
    return found


def plain_scores(case: Case, rows: list[int], outputs: list[list[int]]) -> list[list[float]]:
    """The log-probability of every token, one forward for all the outputs of a row."""
    found: list[list[float]] = [[] for _ in rows]
    for row in set(rows):
        places = [place for place, other in enumerate(rows) if other == row]
        filled = [outputs[place] + [0] * (RULES.max_new - len(outputs[place])) for place in places]
        for place, table in zip(places, case.log_probs(row, filled).tolist(), strict=True):
            found[place] = [table[n][token] for n, token in enumerate(outputs[place])]
    return found


def searched_is_plain(case: Case) -> list[str]:
    """A beam on caches finds what plain search finds, whose every sequence is read anew."""
    found = []
    for row, mine in enumerate(case.generate(METHODS[2], RULES)):
        plain = searched(case, row)
        found += all_unlike(f"row {row}", mine, plain.outputs) if plain.clear else []
    return found


def searched(case: Case, row: int) -> Found:
    """By plain search, which does not stop before the greatest length."""
    if ("plain", row) not in case.made:
        case.made["plain", row] = beam_search(case, row, METHODS[2], RULES, stops=False)
    return case.made["plain", row]


SELECTIONS = [
    ((0, 0, 0), (0, 1, 2)),  # each row three times
    ((2, 0, 1), (0, 1, 2)),  # in another order
    ((1, 1, 2), (0, 2)),  # a sentence gone; of the others one row doubled and one gone
    ((2, 0), (1, 0)),  # the sentences change places, and have a row less
    ((0,), (1,)),  # one left
]
"""One after another: which of its beams each sentence keeps, and which of the sentences stay."""


@torch.no_grad()
def selected_is_fresh(case: Case) -> list[str]:
    """After rows were doubled, re-ordered and dropped, a session gives what a fresh one on the same histories gives."""
    session, sentences, found = case.session(), [0, 1, 2], []
    histories: list[list[int]] = [[] for _ in sentences]
    for turn, (beams, stays) in enumerate(SELECTIONS):
        n_before = len(histories) // len(sentences)
        rows = [sentence * n_before + beam for sentence in stays for beam in beams]
        session.select(torch.tensor(rows), None if stays == tuple(range(len(sentences))) else torch.tensor(stays))
        tokens = steps_of(len(rows), 1, seed=turn)
        session.extend(tokens[:, 0])
        sentences = [sentences[i] for i in stays]
        histories = [histories[row] + tokens[place].tolist() for place, row in enumerate(rows)]
        fresh = case.only([sentence for sentence in sentences for _ in beams]).after(histories).session()
        found += apart(f"rows {rows}", session.logits, fresh.logits)
    return found


LAWS = {
    law.__name__: law
    for law in (
        cached_is_uncached,
        cached_is_uncached_from_one_token,
        padded_is_unpadded,
        batched_is_single,
        streamed_is_whole,
        narrowest_beam_is_greedy,
        scored_is_generated,
        searched_is_plain,
        selected_is_fresh,
    )
}


def broken_laws(case: Case) -> dict[str, list[str]]:
    """The differences each law finds, where it finds any."""
    return {name: found for name, law in LAWS.items() if (found := law(case))}
