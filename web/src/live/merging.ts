/** The models of tokenisers: from a piece of text to token ids, by merges, by the likeliest pieces, or by whole words. */

import type { Component } from "./plan";

/** A token, and from which UTF-16 unit of the word to which it stands. */
export interface Piece {
  id: number;
  start: number;
  stop: number;
}

export type Encode = (word: string) => Piece[];

const MOST_KNOWN = 10_000;

/** Byte-pair encoding: the pair that was learned first is merged first, of equal ones the leftmost. */
export function bytePairs(model: Component): Encode {
  const vocab = new Map(Object.entries(model.vocab as Record<string, number>));
  const merges = new Map<string, [number, number]>();
  mergesOf(model).forEach(([first, second], rank) => {
    merges.set(`${vocab.get(first)} ${vocab.get(second)}`, [rank, vocab.get(first + second)!]);
  });
  const unknown = vocab.get((model.unk_token as string | null) ?? "");
  const known = new Map<string, Piece[]>();
  return (word) => {
    const before = known.get(word);
    if (before !== undefined) return before;
    const whole = model.ignore_merges ? vocab.get(word) : undefined;
    const made =
      whole === undefined
        ? mergePairs(letters(word, vocab, model, unknown), merges)
        : [{ id: whole, start: 0, stop: word.length }];
    if (known.size < MOST_KNOWN) known.set(word, made);
    return made;
  };
}

/** The pairs that BPE merges, in the order in which they were learned; older files write a pair as one text. */
export function mergesOf(model: Component): [string, string][] {
  return ((model.merges ?? []) as (string | [string, string])[]).map((merge) => {
    if (typeof merge !== "string") return merge;
    const space = merge.indexOf(" ");
    return [merge.slice(0, space), merge.slice(space + 1)];
  });
}

/** The tokens of single characters; bytes for those that are unknown, if the model has them. */
function letters(word: string, vocab: Map<string, number>, model: Component, unknown: number | undefined): Piece[] {
  const pieces: Piece[] = [];
  let stop = 0;
  for (const letter of word) {
    const start = stop;
    stop += letter.length;
    const own = vocab.get(letter);
    const bytes = own === undefined && model.byte_fallback ? byteIds(letter, vocab) : null;
    const last = pieces.at(-1);
    if (own !== undefined) pieces.push({ id: own, start, stop });
    else if (bytes !== null) pieces.push(...bytes.map((id) => ({ id, start, stop })));
    else if (unknown !== undefined && model.fuse_unk && last?.id === unknown) last.stop = stop;
    else if (unknown !== undefined) pieces.push({ id: unknown, start, stop });
  }
  return pieces;
}

function byteIds(text: string, vocab: Map<string, number>): number[] | null {
  const ids = Array.from(new TextEncoder().encode(text), (byte) =>
    vocab.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
  );
  return ids.every((id) => id !== undefined) ? (ids as number[]) : null;
}

function mergePairs(pieces: Piece[], merges: Map<string, [number, number]>): Piece[] {
  while (pieces.length > 1) {
    let [best, at, made] = [Infinity, -1, -1];
    for (let place = 0; place + 1 < pieces.length; place++) {
      const merge = merges.get(`${pieces[place].id} ${pieces[place + 1].id}`);
      if (merge !== undefined && merge[0] < best) [best, at, made] = [merge[0], place, merge[1]];
    }
    if (at < 0) break;
    const { start } = pieces[at];
    pieces = [...pieces.slice(0, at), { id: made, start, stop: pieces[at + 1].stop }, ...pieces.slice(at + 2)];
  }
  return pieces;
}

/** The likeliest way to cut a piece into tokens; what has none is unknown, or bytes. */
export function unigram(model: Component): Encode {
  const listed = model.vocab as [string, number][];
  const vocab = new Map(listed.map(([token, score], id) => [token, { id, score }]));
  const ids = new Map(listed.map(([token], id) => [token, id]));
  const longest = Math.max(...listed.map(([token]) => Array.from(token).length));
  const unknownScore = Math.min(...listed.map(([, score]) => score)) - 10;
  const unknown = model.unk_id as number;
  return (word) => {
    const signs = Array.from(word);
    const best: { score: number; from: number; id: number }[] = [{ score: 0, from: 0, id: -1 }];
    for (let start = 0; start < signs.length; start++) {
      const here = best[start].score;
      let single = false;
      let text = "";
      for (let size = 1; size <= longest && start + size <= signs.length; size++) {
        text += signs[start + size - 1];
        const token = vocab.get(text);
        if (token === undefined) continue;
        const score = here + token.score;
        const there = best[start + size];
        if (there === undefined || score > there.score) best[start + size] = { score, from: start, id: token.id };
        if (size === 1) single = true;
      }
      const next = best[start + 1];
      const score = here + unknownScore;
      if (!single && (next === undefined || score > next.score)) best[start + 1] = { score, from: start, id: unknown };
    }
    return spell(signs, best, unknown, (text) => (model.byte_fallback ? byteIds(text, ids) : null), ids);
  };
}

function spell(
  signs: string[],
  best: { from: number; id: number }[],
  unknown: number,
  bytes: (text: string) => number[] | null,
  ids: Map<string, number>,
): Piece[] {
  const pieces: { text: string; id: number }[] = [];
  for (let end = signs.length; end > 0; end = best[end].from) {
    const { from, id } = best[end];
    const text = signs.slice(from, end).join("");
    const last = pieces.at(-1);
    if (id === unknown && last?.id === unknown) last.text = text + last.text;
    else pieces.push({ text, id });
  }
  let stop = 0;
  return pieces.reverse().flatMap(({ text, id }) => {
    const start = stop;
    stop += text.length;
    const made = id === unknown ? (known(text, ids) ?? bytes(text) ?? [unknown]) : [id];
    return made.map((one) => ({ id: one, start, stop }));
  });
}

function known(text: string, ids: Map<string, number>): number[] | null {
  const id = ids.get(text);
  return id === undefined ? null : [id];
}

export function wordLevel(model: Component): Encode {
  const vocab = new Map(Object.entries(model.vocab as Record<string, number>));
  const unknown = vocab.get(model.unk_token as string);
  return (word) => {
    const id = vocab.get(word) ?? unknown;
    return id === undefined ? [] : [{ id, start: 0, stop: word.length }];
  };
}

/** The longest token that a word begins with, then of the rest with the prefix; one unknown where it does not end so. */
export function wordPiece(model: Component): Encode {
  const vocab = new Map(Object.entries(model.vocab as Record<string, number>));
  const unknown = vocab.get(model.unk_token as string)!;
  const prefix = model.continuing_subword_prefix as string;
  return (word) => {
    const whole = [{ id: unknown, start: 0, stop: word.length }];
    const signs = Array.from(word);
    if (signs.length > (model.max_input_chars_per_word as number)) return whole;
    const pieces: Piece[] = [];
    let unit = 0;
    for (let start = 0; start < signs.length;) {
      let end = signs.length;
      let text = "";
      let id: number | undefined;
      for (; end > start; end--) {
        text = signs.slice(start, end).join("");
        id = vocab.get((start > 0 ? prefix : "") + text);
        if (id !== undefined) break;
      }
      if (id === undefined) return whole;
      pieces.push({ id, start: unit, stop: (unit += text.length) });
      start = end;
    }
    return pieces;
  };
}
