/** The models of tokenisers: from a piece of text to token ids, by merges, by the likeliest pieces, or by whole words. */

import type { Component } from "./plan";

export type Encode = (word: string) => number[];

const MOST_KNOWN = 10_000;

/** Byte-pair encoding: the pair that was learned first is merged first, of equal ones the leftmost. */
export function bytePairs(model: Component): Encode {
  const vocab = new Map(Object.entries(model.vocab as Record<string, number>));
  const merges = new Map<string, [number, number]>();
  (model.merges as (string | [string, string])[]).forEach((merge, rank) => {
    const [first, second] = typeof merge === "string" ? merge.split(" ") : merge;
    merges.set(`${vocab.get(first)} ${vocab.get(second)}`, [rank, vocab.get(first + second)!]);
  });
  const unknown = vocab.get((model.unk_token as string | null) ?? "");
  const known = new Map<string, number[]>();
  return (word) => {
    const before = known.get(word);
    if (before !== undefined) return before;
    const whole = model.ignore_merges ? vocab.get(word) : undefined;
    const made = whole === undefined ? mergePairs(letters(word, vocab, model, unknown), merges) : [whole];
    if (known.size < MOST_KNOWN) known.set(word, made);
    return made;
  };
}

/** The ids of single characters; bytes for those that are unknown, if the model has them. */
function letters(word: string, vocab: Map<string, number>, model: Component, unknown: number | undefined): number[] {
  const ids: number[] = [];
  for (const letter of word) {
    const own = vocab.get(letter);
    const bytes = own === undefined && model.byte_fallback ? byteIds(letter, vocab) : null;
    if (own !== undefined) ids.push(own);
    else if (bytes !== null) ids.push(...bytes);
    else if (unknown !== undefined && !(model.fuse_unk && ids.at(-1) === unknown)) ids.push(unknown);
  }
  return ids;
}

function byteIds(text: string, vocab: Map<string, number>): number[] | null {
  const ids = Array.from(new TextEncoder().encode(text), (byte) =>
    vocab.get(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
  );
  return ids.every((id) => id !== undefined) ? (ids as number[]) : null;
}

function mergePairs(ids: number[], merges: Map<string, [number, number]>): number[] {
  while (ids.length > 1) {
    let [best, at, made] = [Infinity, -1, -1];
    for (let place = 0; place + 1 < ids.length; place++) {
      const merge = merges.get(`${ids[place]} ${ids[place + 1]}`);
      if (merge !== undefined && merge[0] < best) [best, at, made] = [merge[0], place, merge[1]];
    }
    if (at < 0) break;
    ids = [...ids.slice(0, at), made, ...ids.slice(at + 2)];
  }
  return ids;
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
): number[] {
  const pieces: { text: string; id: number }[] = [];
  for (let end = signs.length; end > 0; end = best[end].from) {
    const { from, id } = best[end];
    const text = signs.slice(from, end).join("");
    const last = pieces.at(-1);
    if (id === unknown && last?.id === unknown) last.text = text + last.text;
    else pieces.push({ text, id });
  }
  return pieces
    .reverse()
    .flatMap(({ text, id }) => (id === unknown ? [...(known(text, ids) ?? bytes(text) ?? [unknown])] : [id]));
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
    return id === undefined ? [] : [id];
  };
}

/** The longest token that a word begins with, then of the rest with the prefix; one unknown where it does not end so. */
export function wordPiece(model: Component): Encode {
  const vocab = new Map(Object.entries(model.vocab as Record<string, number>));
  const unknown = vocab.get(model.unk_token as string)!;
  const prefix = model.continuing_subword_prefix as string;
  return (word) => {
    const signs = Array.from(word);
    if (signs.length > (model.max_input_chars_per_word as number)) return [unknown];
    const ids: number[] = [];
    for (let start = 0; start < signs.length;) {
      let end = signs.length;
      let id: number | undefined;
      for (; end > start; end--) {
        id = vocab.get((start > 0 ? prefix : "") + signs.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [unknown];
      ids.push(id);
      start = end;
    }
    return ids;
  };
}
