/** How things are called on the page. */

import type { BoxKind, SiteMeta, ViewName } from "./source";

export const TITLES: Record<ViewName, string> = {
  model: "Model",
  heads: "Heads",
  head: "Head",
  steps: "Steps",
  similarity: "Similarity",
  context: "Context",
  positions: "Positions",
  decoding: "Decoding",
  intervene: "Intervene",
  training: "Training",
  design: "Design",
  spaces: "Spaces",
  sequence: "Sequence",
};

/** One line about each view, for its entry in the menu. */
export const ABOUT: Record<ViewName, string> = {
  model: "The whole model, from tokens to output",
  heads: "All heads at a glance: find the one to look into",
  head: "Where one head looks",
  steps: "Attention in four steps, with every number",
  similarity: "How alike two vectors are",
  context: "One word, a different vector in each sentence",
  positions: "How the model knows the order of tokens",
  decoding: "How an output is found, token by token",
  intervene: "Change something inside and see what comes out",
  training: "How the run learned",
  design: "Make a head by hand, and send it into the model",
  spaces: "The same words as embeddings, as queries and keys, as values",
  sequence: "Attention as a sequence diagram: who sends what to whom",
};

/** Views in which no head is looked at. */
export const PLACELESS: readonly ViewName[] = ["context", "positions", "decoding"];

/** Views that show the changed model beside the unchanged one. */
export const COMPARING: readonly ViewName[] = ["intervene", "design"];

/** Views that edits do not reach, and why. */
export const UNREACHED: Partial<Record<ViewName, string>> = {
  context: "It compares several texts, and an edit is made for one.",
  positions: "Position vectors are added before the first layer, so edits do not change them.",
};

/** What of a view the edits reach, where it is not plain. */
export const EDITS_REACH: Partial<Record<ViewName, string>> = {
  training: "The head is shown with the edits at every checkpoint; the curves are those of training, without them.",
  decoding: "The beam is searched with the changed model.",
  intervene: "This view shows both: the unchanged model beside the changed one.",
  design: "The head you design goes into the changed model.",
};

export const BOX_TITLES: Record<BoxKind, string> = {
  token: "embedding",
  position: "position",
  norm: "norm",
  attention: "self-attention",
  cross: "cross-attention",
  add: "add",
  feed_forward: "feed-forward",
  output: "output",
};

/** "Decoder 1 · cross-attention" */
export function siteTitle(site: Pick<SiteMeta, "side" | "layer" | "slot">): string {
  const side = site.side === "encoder" ? "Encoder" : "Decoder";
  return `${side} ${site.layer} · ${site.slot === "cross" ? "cross-attention" : "self-attention"}`;
}

/** A number to read: four digits that matter, no exponents where they can be avoided; null is −∞. */
export function shown(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined || value === -Infinity) return "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e-4 && size < 1e6 ? fixed(value, size, digits) : value.toExponential(digits - 1);
  return text.replace(/^-/, "−").replace("e-", "e−");
}

/** 0.042 → "4.2 %" */
export function percent(share: number): string {
  const value = share * 100;
  if (value > 0 && value < 0.1) return "<0.1 %";
  return `${value >= 99.95 ? "100" : value.toFixed(value < 10 ? 1 : 0)} %`;
}

/** 1 234 567 → "1.2 M" */
export function size(count: number): string {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)} B`;
  if (count >= 1e6) return `${(count / 1e6).toFixed(1)} M`;
  return count >= 1e4 ? `${Math.round(count / 1e3)} k` : String(count);
}

/** A token as it is shown: a space made visible, nothing empty. */
export function piece(token: string): string {
  return token === "" ? "∅" : token.replace(/\n/g, "⏎").replace(/^[ \u2581]/, "·");
}

/** Notes as sentences, each by itself: a capital at the beginning, a full stop at the end. */
export function sentences(notes: readonly string[]): string {
  return notes
    .map((note) => note.trim())
    .filter(Boolean)
    .map((note) => note[0].toUpperCase() + note.slice(1) + (/[.!?…]$/.test(note) ? "" : "."))
    .join(" ");
}

function fixed(value: number, size: number, digits: number): string {
  const whole = Math.max(1, Math.floor(Math.log10(size)) + 1);
  return value.toFixed(Math.max(0, size < 1 ? digits : digits - whole));
}
