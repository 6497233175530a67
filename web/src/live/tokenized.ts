/** A text's tokens word by word, and how each came to be, as clearhead/serve/questions/tokenize.py answers it. */

import { type AskTokenize, type MergePart, SourceError, type TextToken, type TokenizedText } from "../lib/source";
import { mergesOf } from "./merging";
import type { Task } from "./task";
import type { Span, Tokenizer } from "./tokenizer";

/** Characters of a text, and of a token that is shown as a tree. */
const [LONGEST, LONGEST_TREE] = [20_000, 64];

export function tokenized(task: Task, { text, field }: AskTokenize): TokenizedText {
  const letters = Array.from(text);
  if (letters.length > LONGEST)
    throw new SourceError(`text has ${letters.length} characters; ${LONGEST} at most will do`, 413);
  const fields = new Map<string, Tokenizer>();
  task.plan.fields.forEach((name, place) => {
    const one = task.tokenizers[place];
    if (![...fields.values()].includes(one)) fields.set(name, one);
  });
  const chosen = field ?? task.plan.fields[0];
  const tokenizer = fields.get(chosen);
  if (tokenizer === undefined)
    throw new SourceError(`field is '${chosen}', and must be one of ${[...fields.keys()].join(", ")}`);
  const { model, vocabulary, lower } = tokenizer.plan;
  const rules = rulesOf(tokenizer);
  const words = tokenizer.spans(text);
  const spans = words.flat();
  const trees: TokenizedText["trees"] = {};
  for (const { id } of spans) {
    const tree = tokenizer.special.has(id) ? null : rules.tree(tokenizer.token(id));
    if (tree !== null && tree.length > 1) trees[id] = tree;
  }
  return {
    field: chosen,
    fields: [...fields.keys()],
    text,
    words: words.map((word) => word.map((span) => described(tokenizer, rules, span, letters))),
    trees,
    model: model.type,
    merges: rules.merges,
    vocabulary,
    lower,
    characters: letters.length,
    n_bytes: new TextEncoder().encode(text).length,
    tokens: spans.length,
    unknown: spans.filter(({ id }) => id === tokenizer.ids.unknown).length,
  };
}

function described(tokenizer: Tokenizer, rules: Rules, { id, start, stop }: Span, letters: string[]): TextToken {
  const [unknown, special] = [id === tokenizer.ids.unknown, tokenizer.special.has(id)];
  const covered = letters.slice(start, stop).join("");
  const token = tokenizer.token(id);
  return {
    id,
    text: unknown ? covered : tokenizer.names([id])[0],
    bytes: unknown || special ? [...new TextEncoder().encode(covered)] : tokenizer.bytesOf(token),
    start,
    stop,
    unknown,
    special,
    score: unknown ? null : (rules.scores.get(token) ?? null),
  };
}

interface Rules {
  merges: number;
  /** Log-probabilities of the pieces of Unigram. */
  scores: Map<string, number>;
  /** The parts of a token and their merges in order, the token last; null where merges do not make it. */
  tree: (token: string) => MergePart[] | null;
}

const known = new WeakMap<Tokenizer, Rules>();

function rulesOf(tokenizer: Tokenizer): Rules {
  let found = known.get(tokenizer);
  if (found === undefined) known.set(tokenizer, (found = readRules(tokenizer)));
  return found;
}

function readRules(tokenizer: Tokenizer): Rules {
  const { model } = tokenizer.plan;
  const ranks = new Map(mergesOf(model).map(([left, right], rank) => [pairOf(left, right), rank]));
  const scores = new Map(model.type === "Unigram" ? (model.vocab as [string, number][]) : []);
  return {
    merges: ranks.size,
    scores,
    tree: model.type === "BPE" ? (token) => treeOf(tokenizer, ranks, token) : () => null,
  };
}

function pairOf(left: string, right: string): string {
  return `${left.length} ${left}${right}`;
}

function treeOf(tokenizer: Tokenizer, ranks: Map<string, number>, token: string): MergePart[] | null {
  const parts = Array.from(token, (text, node) => ({ text, node }));
  if (parts.length < 1 || parts.length > LONGEST_TREE) return null;
  const nodes: MergePart[] = parts.map(({ text }) => ({
    text: tokenizer.shown(text),
    left: null,
    right: null,
    rank: null,
  }));
  while (parts.length > 1) {
    let [best, at] = [Infinity, -1];
    for (let place = 0; place + 1 < parts.length; place++) {
      const rank = ranks.get(pairOf(parts[place].text, parts[place + 1].text));
      if (rank !== undefined && rank < best) [best, at] = [rank, place];
    }
    if (at < 0) return null;
    const [left, right] = [parts[at], parts[at + 1]];
    const text = left.text + right.text;
    parts.splice(at, 2, { text, node: nodes.length });
    nodes.push({ text: tokenizer.shown(text), left: left.node, right: right.node, rank: best });
  }
  return nodes;
}
