/** What each step is, in a sentence with the numbers of the row that is shown. */

import type { Role, Row, SiteMeta } from "../../lib/source";
import { piece } from "../../lib/words";
import { scaleWords } from "./working";

export const NAMES = ["Vectors", "Scores", "Weights", "Weighted sum"] as const;

/** A token as a word of a sentence: without the mark of the space before it. */
export function word(token: string): string {
  return piece(token).replace(/^·(?=.)/, "");
}

export interface Part {
  text: string;
  role?: Role;
}

export interface Sentence {
  parts: Part[];
  /** The same without colours. */
  plain: string;
}

/** One sentence a step. Words between braces are coloured by their role: "{query}", "{weight:shares}". */
export function sentences(site: SiteMeta, row: Row, query: number, tokens: string[]): Sentence[] {
  const token = word(tokens[query] ?? "");
  return [vectors(site), scores(site, token), weights(site, row), sum(site, token)].map(coloured);
}

function vectors(site: SiteMeta): string {
  const where =
    site.slot === "cross"
      ? "The query comes from the text being written, keys and values from the text being read."
      : "All three come from the same text.";
  const turned = site.arithmetic.turns
    ? " Then each {query} and each {key} is turned by its position, pair by pair, so that their product knows how far apart they stand."
    : "";
  return (
    "Each token’s vector is mapped three times: to a {query}, what it looks for; a {key}, what it is found by; " +
    `a {value}, what it gives. ${where}${turned}`
  );
}

function scores(site: SiteMeta, token: string): string {
  if (isKernel(site)) {
    return `The {query} of “${token}” meets every {key}: both pass through φ, and the score is φ(q) · φ(k), never negative.`;
  }
  const turned = site.arithmetic.turns ? "turned " : "";
  return (
    `The ${turned}{query} of “${token}” meets every ${turned}{key}: their ${site.d_head} numbers multiplied pair by pair and added. ` +
    "The better the two fit, the higher the score."
  );
}

function weights(site: SiteMeta, row: Row): string {
  const { by } = scaleWords(row.score ? scaleOf(row) : 1, site.d_head, site.arithmetic.scale_reason);
  const scaled = by ? `Every score ${by}; ` : "The scores stay as they are; ";
  const off = (row.allowed ?? []).filter((may) => !may).length;
  const keys = off === 1 ? "1 key" : `${off.toLocaleString("en-GB")} keys`;
  const mask = off ? `${keys} out of sight set to ${isKernel(site) ? "0" : "−∞"}; ` : "nothing is masked; ";
  return scaled + mask + weighed(site);
}

function weighed(site: SiteMeta): string {
  if (isKernel(site)) return "then each key’s share of the row’s sum is its {weight}.";
  if (site.arithmetic.kind === "argmax") return "then the highest takes all the {weight}.";
  if (site.arithmetic.kind === "softmax")
    return "then softmax makes shares of them, the {weight:weights}, which sum to 1.";
  return `then ${site.words.weighting} makes {weight:weights} of them.`;
}

function sum(site: SiteMeta, token: string): string {
  const others =
    site.n_heads > 1 ? ` It is then joined with the other ${site.n_heads - 1} heads’ and mapped once more.` : "";
  return (
    "Each {value} times its {weight}, all added: the {context} of " +
    `“${token}”, and the output of this head for it.${others}`
  );
}

function scaleOf(row: Row): number {
  const at = row.score?.findIndex((score) => score !== null && Math.abs(score) > 1e-6) ?? -1;
  const [score, scaled] = [row.score?.[at], row.scaled?.[at]];
  return at < 0 || score == null || scaled == null ? 1 : scaled / score;
}

function isKernel(site: SiteMeta): boolean {
  return site.arithmetic.kind === "kernelized";
}

function coloured(text: string): Sentence {
  const parts = text
    .split(/(\{[^}]+\})/)
    .filter(Boolean)
    .map(part);
  return { parts, plain: parts.map(({ text }) => text).join("") };
}

function part(text: string): Part {
  const found = /^\{(\w+)(?::([^}]+))?\}$/.exec(text);
  return found ? { text: found[2] ?? found[1], role: found[1] as Role } : { text };
}
