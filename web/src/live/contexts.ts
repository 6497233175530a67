/** One word in several texts, and positions as vectors: clearhead/serve/contexts.py and waves.py. */

import { cosine } from "../lib/arithmetic";
import { planeOf } from "../lib/plane";
import { type ContextAnswer, type Matrix, type Positions, type SideName, SourceError } from "../lib/source";
import { type Model, sinusoid } from "./model";
import type { PositionPlan } from "./plan";
import { largest } from "./tensor";
import type { Tokenizer } from "./tokenizer";
import type { Trace } from "./trace";

const RESPONSIBLE = 5;

interface Occurrence {
  text: string;
  trace: Trace;
  side: SideName;
  places: number[];
}

/** Every occurrence of the word in a text, as a word of its own; else as whole tokens of longer words. */
export function occurrences(
  tokenizer: Tokenizer,
  word: string,
  text: string,
  trace: Trace,
  side: SideName,
): Occurrence[] {
  const ids = trace.ids(side);
  const ends = Array.from({ length: ids.length + 1 }, (_, n) => tokenizer.decode(ids.slice(0, n)).length);
  const spans = ids.map((_, n): [number, number] => [Math.min(ends[n], ends[n + 1]), ends[n + 1]]);
  const whole = tokenizer.decode(ids);
  const wanted = tokenizer.decode(tokenizer.encode(word)).trim();
  if (wanted === "" || wanted.includes("\ufffd"))
    throw new SourceError(
      `this run's tokenizer has no token for '${word.slice(0, 60)}', so it cannot be followed; take another`,
    );
  const all = findAll(whole, wanted);
  const inWord = (letter: string | undefined): boolean => letter !== undefined && /[\p{L}\p{N}\p{M}_]/u.test(letter);
  let found = all.filter(([start, stop]) => !inWord(Array.from(whole.slice(0, start)).at(-1)) && !inWord(Array.from(whole.slice(stop))[0])); // prettier-ignore
  if (found.length === 0)
    found = all.filter(([start, stop]) => spans.some(([a]) => a === start) && spans.some(([, b]) => b === stop));
  if (found.length === 0)
    throw new SourceError(
      `the word '${word.slice(0, 60)}' does not stand in '${text.slice(0, 60)}'; write it in every text`,
    );
  return found.map(([start, stop]) => {
    const places = spans.flatMap(([a, b], place) => (a < stop && start < b ? [place] : []));
    return { text, trace, side, places };
  });
}

function findAll(text: string, part: string): [number, number][] {
  const found: [number, number][] = [];
  for (let at = text.indexOf(part); at >= 0; at = text.indexOf(part, at + part.length))
    found.push([at, at + part.length]);
  return found;
}

export function contextView(word: string, found: Occurrence[]): ContextAnswer {
  const paths = found.map(pathOf);
  const layers = paths[0].length;
  const { points } = planeOf(paths.flat());
  return {
    word,
    places: found.map(({ text, trace, side, places }) => ({ text, tokens: trace.inputs.tokens[side]!, places })),
    layers: ["embedding", ...Array.from({ length: layers - 1 }, (_, layer) => String(layer))],
    cosine: Array.from({ length: layers }, (_, layer) =>
      paths.map((one) => paths.map((other) => cosine(one[layer], other[layer]))),
    ),
    path: paths.map((_, path) => points.slice(path * layers, (path + 1) * layers)),
    responsible: found.map((one) => [[], ...Array.from({ length: layers - 1 }, (_, layer) => responsible(one, layer))]),
  };
}

/** Its vectors: the embedding without a position, then after each layer; of several tokens the mean. */
function pathOf({ trace, side, places }: Occurrence): Float64Array[] {
  const names = [...trace.stream.keys()];
  const layers = trace.model
    .side(side)
    .blocks.map((_, layer) => names.findLast((name) => name.startsWith(`${side}.${layer}.`))!);
  return [`${side}.embedding.token`, ...layers].map((name) => {
    const { columns, data } = trace.stream.get(name)!;
    return Float64Array.from({ length: columns }, (_, k) => places.reduce((sum, place) => sum + data[place * columns + k], 0) / places.length); // prettier-ignore
  });
}

/** The tokens it attends to most in a layer, in the mean of the heads. */
function responsible({ trace, side, places }: Occurrence, layer: number): ContextAnswer["responsible"][number][number] {
  const site = trace.sites.get(`${side}.${layer}.attention`)!;
  const weight = new Float64Array(site.n_key);
  for (let head = 0; head < site.n_heads; head++)
    for (const place of places) {
      const row = site.weights(head, place);
      for (let key = 0; key < weight.length; key++) weight[key] += row[key] / site.n_heads / places.length;
    }
  const tokens = trace.inputs.tokens[side]!;
  return largest(weight, RESPONSIBLE).map((index) => ({ index, text: tokens[index], weight: weight[index] }));
}

/** The kinds of positions, with the run's own numbers for those it has; `kinds` are words, written by Python. */
export function positionsOf(model: Model, words: Positions, n: number): Positions {
  const plan = model.side(model.sides[0]);
  const inside = plan.blocks[0][0].attention!;
  const kinds = words.kinds.map((kind) => {
    if (kind.name === "sinusoidal") {
      const own = plan.embedding.position?.kind === "sinusoidal" ? plan.embedding.position : null;
      const width = Math.max(2, plan.d_model - (plan.d_model % 2));
      const table = rows(n, (row) =>
        Array.from(sinusoid((own?.first ?? 0) + row, width, own ?? { layout: "interleaved", base: 10_000 })),
      );
      return { ...kind, table, similarity: byDistance(table) };
    }
    if (kind.name === "rotary") return { ...kind, ...rotaryTable(inside.position, inside.d_head, n) };
    const own = plan.embedding.position;
    if (own?.kind !== "learned") return kind;
    const { shape, data } = model.tensor(own.table);
    const whole: Matrix = { rows: shape[0], columns: shape[1], data };
    const there = Math.min(n, whole.rows - own.first);
    const table = rows(there, (row) => Array.from(data.subarray((own.first + row) * shape[1], (own.first + row + 1) * shape[1]))); // prettier-ignore
    const cut = there < n ? ` It has ${there} positions.` : "";
    return { ...kind, note: kind.note + cut, table, similarity: byDistance(table) };
  });
  return { ...words, kinds };
}

function rotaryTable(position: PositionPlan, d_head: number, n: number): { table: number[][]; similarity: number[] } {
  const width = Math.max(2, d_head - (d_head % 2));
  const usual = Array.from({ length: width / 2 }, (_, pair) => 10_000 ** ((-2 * pair) / width));
  const own = position.kind === "rotary" ? position : null;
  const frequency = own?.frequency ?? usual;
  const pairs = own?.pairs ?? usual.map((_, pair) => [2 * pair, 2 * pair + 1]);
  const table = rows(n, (row) => {
    const made = new Array<number>(2 * frequency.length);
    pairs.forEach(([i, j], pair) => {
      made[i] = Math.cos(row * frequency[pair]);
      made[j] = Math.sin(row * frequency[pair]);
    });
    return made;
  });
  const similarity = rows(n, (row) => frequency.reduce((sum, one) => sum + Math.cos(row * one), 0) / frequency.length);
  return { table, similarity };
}

function rows<Value>(n: number, make: (row: number) => Value): Value[] {
  return Array.from({ length: n }, (_, row) => make(row));
}

/** The mean cosine of two places, for each distance; a vector of zeros has no direction, so its pairs are left out. */
function byDistance(table: number[][]): number[] {
  const there = table.map((row) => row.some((value) => value !== 0));
  return rows(table.length, (distance) => {
    let [sum, pairs] = [0, 0];
    for (let place = 0; place + distance < table.length; place++) {
      if (!there[place] || !there[place + distance]) continue;
      sum += cosine(table[place], table[place + distance]);
      pairs += 1;
    }
    return sum / Math.max(1, pairs);
  });
}
