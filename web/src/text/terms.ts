/** Which words of a sentence are terms of the glossary, so that headings and introductions explain what they say. */

import type { TermName } from "./glossary.en";
import type { Language } from "./index";

/** The forms in which a term occurs, as parts of a regular expression; none of a term that every other sentence has. */
const FORMS: Record<Language, Partial<Record<TermName, string>>> = {
  en: {
    attention: "attention",
    token: "tokens?",
    vocabulary: "vocabulary",
    embedding: "embeddings?",
    vector: "vectors?",
    position: "positions?",
    query: "quer(?:y|ies)",
    key: "keys?",
    value: "values?",
    score: "scores?",
    dot: "dot products?",
    mask: "masks?",
    causal: "causal masks?",
    softmax: "softmax",
    weight: "(?<!output )weights?", // the output weights of a unit are parameters
    sum: "weighted sums?",
    context: "context vectors?",
    head: "heads?",
    layer: "layers?",
    cross: "cross-attention",
    residual: "residual stream",
    feedforward: "feed-forward",
    unit: "hidden units?",
    logit: "logits?",
    probability: "probabilit(?:y|ies)",
    greedy: "greedy",
    beam: "beam(?: search)?",
    sampling: "sampl(?:es?|ing)",
    temperature: "temperature",
    ablation: "ablat(?:e|ion)",
  },
  de: {
    attention: "Attention",
    token: "Tokens?",
    vocabulary: "Vokabular|Wortschatz",
    embedding: "Embeddings?",
    vector: "Vektor(?:en|s)?",
    position: "Position(?:en)?",
    query: "Quer(?:y|ies|ys)",
    key: "Keys?",
    value: "Values?",
    score: "Scores?",
    dot: "Skalarprodukte?",
    mask: "Masken?",
    causal: "kausalen? Masken?",
    softmax: "Softmax",
    weight: "Gewichte?n?",
    sum: "gewichteten? Summen?",
    context: "Kontextvektor(?:en)?",
    head: "K(?:opf|opfes|öpfen?)",
    layer: "Schicht(?:en)?",
    cross: "Cross-Attention",
    residual: "Residual Streams?",
    feedforward: "Feed-Forward(?:-Netz(?:es|e)?)?",
    unit: "Einheit(?:en)?",
    logit: "Logits?",
    probability: "Wahrscheinlichkeit(?:en)?",
    greedy: "greedy",
    beam: "Beam(?:[ -]Search)?",
    sampling: "Sampling",
    temperature: "Temperatur",
    ablation: "Ablation",
  },
};

export interface Explained {
  text: string;
  /** The term that it is; null where it is just text. */
  term: TermName | null;
}

/** Split a sentence at its terms: each is explained where it comes first. A longer form wins over a shorter. */
export function explained(sentence: string, language: Language): Explained[] {
  const forms = Object.entries(FORMS[language]).sort(([, one], [, other]) => other.length - one.length);
  const words = new RegExp(
    `(?<![\\p{L}-])(?:${forms.map(([name, form]) => `(?<${name}>${form})`).join("|")})(?![\\p{L}-])`,
    "giu",
  );
  const [parts, seen]: [Explained[], Set<string>] = [[], new Set()];
  let end = 0;
  for (const found of sentence.matchAll(words)) {
    const name = Object.keys(found.groups ?? {}).find((one) => found.groups![one] !== undefined) as TermName;
    if (seen.has(name)) continue;
    seen.add(name);
    if (found.index > end) parts.push({ text: sentence.slice(end, found.index), term: null });
    parts.push({ text: found[0], term: name });
    end = found.index + found[0].length;
  }
  if (end < sentence.length) parts.push({ text: sentence.slice(end), term: null });
  return parts;
}
