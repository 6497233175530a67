/** What each step is, in a sentence with the numbers of the row that is shown. */

import type { Role, Row, SiteMeta } from "../../lib/source";
import { piece, shown } from "../../lib/words";
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
    "Each token’s vector is projected three times: to a {query}, what it looks for; a {key}, what it is found by; " +
    `a {value}, what it gives. ${where}${turned}`
  );
}

function scores(site: SiteMeta, token: string): string {
  const { turns, formula } = site.arithmetic;
  const turned = turns ? "turned " : "";
  const pair = `The ${turned}{query} of “${token}” is compared with every ${turned}{key}: `;
  if (formula !== "query · key") return `${pair}the score is ${formula}.`;
  return (
    `${pair}their ${site.d_head} numbers are multiplied pair by pair and added. ` +
    "The better the two fit, the higher the score."
  );
}

function weights(site: SiteMeta, row: Row): string {
  const { by } = scaleWords(row.score ? scaleOf(row) : 1, site.d_head, site.arithmetic.scale_reason);
  const scaled = by ? `Every score ${by}; ` : "The scores stay as they are; ";
  const off = (row.allowed ?? []).filter((may) => !may).length;
  const keys = off === 1 ? "1 key" : `${off.toLocaleString("en-GB")} keys`;
  const mask = off ? `${keys} masked, set to ${shown(site.arithmetic.blocked)}; ` : "nothing is masked; ";
  return scaled + mask + weighed(site);
}

function weighed(site: SiteMeta): string {
  switch (site.arithmetic.kind) {
    case "kernelized":
      return "then each key’s share of the row’s sum is its {weight}.";
    case "argmax":
      return "then the highest takes all the {weight}.";
    case "softmax":
      return "then softmax makes shares of them, the {weight:weights}, which sum to 1.";
    case "rows":
      return `then ${site.words.weighting} makes the {weight:weights}: ${site.arithmetic.rule}.`;
  }
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
