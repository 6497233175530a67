/** Sentences with marks in them: tokens in the colour of their role, terms of the glossary, numbers that matter. */

import { piece } from "../lib/words";
import { marked } from "../text/marked";
import type { TermName } from "../text/glossary.en";

/** What a token is in a sentence: one that asks, one that is asked, or just a token. */
export type TokenRole = "query" | "key" | "token";

export type Part =
  | { kind: "text"; text: string }
  | { kind: "strong"; text: string }
  | { kind: "token"; text: string; role: TokenRole }
  | { kind: "term"; text: string; name: TermName };

// Characters that no keyboard has, so that a token of the text cannot be taken for a mark.
const [OPEN, CLOSE] = ["\uE000", "\uE001"];
const ROLES: readonly TokenRole[] = ["query", "key", "token"];
const MARKS = new RegExp(
  `${OPEN}(\\d)([^${CLOSE}]*)${CLOSE}|\\[\\[(\\w+)(?:\\|([^\\]]*))?\\]\\]|\\*\\*(.+?)\\*\\*`,
  "g",
);

/** Return a token as it stands in a sentence. */
export function token(text: string, role: TokenRole = "token"): string {
  return `${OPEN}${ROLES.indexOf(role)}${piece(text).replaceAll(OPEN, "").replaceAll(CLOSE, "")}${CLOSE}`;
}

/** Return the token at a place; where the text has it twice, its number stands beside it. */
export function tokenAt(tokens: readonly string[], place: number, role: TokenRole = "token"): string {
  const text = tokens[place] ?? "";
  const twice = tokens.indexOf(text) !== tokens.lastIndexOf(text);
  return token(text, role) + (twice ? ` (${place})` : "");
}

/** Split a sentence at its marks: `[[softmax]]`, `[[query|queries]]`, `**91 %**` and tokens. */
export function parse(sentence: string): Part[] {
  const parts: Part[] = [];
  let end = 0;
  for (const found of sentence.matchAll(MARKS)) {
    if (found.index > end) parts.push({ kind: "text", text: sentence.slice(end, found.index) });
    end = found.index + found[0].length;
    const [, role, marked, name, words, strong] = found;
    if (role !== undefined) parts.push({ kind: "token", text: marked, role: ROLES[Number(role)] });
    else if (name !== undefined) parts.push({ kind: "term", text: words ?? name, name: name as TermName });
    else parts.push({ kind: "strong", text: strong });
  }
  if (end < sentence.length) parts.push({ kind: "text", text: sentence.slice(end) });
  return parts;
}

/** Return a sentence of an exercise, with `code` and *words* in it, with the marks of a chapter. */
export function fromMarked(text: string): string {
  return marked(text)
    .map((part) => (part.kind === "code" ? token(part.text) : part.kind === "strong" ? `**${part.text}**` : part.text))
    .join("");
}

/** Return a sentence without its marks. */
export function plain(sentence: string): string {
  return parse(sentence)
    .map((part) => part.text)
    .join("");
}
