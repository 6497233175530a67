/** What a head does in a few numbers, and what the model does without it: clearhead/tracing/head_metrics.py. */

import type { Effects, Matrix, Readings } from "../lib/source";
import type { Site } from "./site";
import { headVector, logSoftmax, rowOf } from "./tensor";

type Name = keyof Readings;
type RowName = Exclude<Name, "gain">;
const NAMES: RowName[] = ["entropy", "distance", "first", "itself", "previous", "same", "induction"];
const SAMPLE = 16;

/** The metrics of every head of a site; of a long text from about `most` of its rows. `ids` null: two sequences. */
export function readSite(site: Site, ids: number[] | null, most: number | null): Readings {
  const heads = Array.from({ length: site.n_heads }, (_, head) => readHead(site, head, ids, most));
  const of = (name: RowName): (number | null)[] => heads.map((one) => one[name]);
  const rows = Object.fromEntries(NAMES.map((name) => [name, of(name)])) as unknown as Omit<Readings, "gain">;
  return { ...rows, gain: heads.map((_, head) => gainOf(site, head)) };
}

/** How many times as long as its contexts W_O makes a head; 1 without W_O, null where all contexts are 0. */
function gainOf(site: Site, head: number): number | null {
  const { columns, rows } = site.context;
  const { plan, tensors } = site.rows;
  const output = plan.output === null ? null : tensors.get(plan.output.weight)!;
  let [added, own] = [0, 0];
  for (let row = 0; row < rows; row++) {
    const context = headVector(site.context, head, row);
    for (const value of context) own += value * value;
    for (let out = 0; out < (output?.shape[0] ?? 0); out++) {
      const from = out * output!.shape[1] + head * columns;
      let sum = 0;
      for (let place = 0; place < columns; place++) sum += output!.data[from + place] * context[place];
      added += sum * sum;
    }
  }
  if (own === 0) return null;
  return output === null ? 1 : Math.sqrt(added / own);
}

function readHead(site: Site, head: number, ids: number[] | null, most: number | null): Record<RowName, number | null> {
  const sums = Object.fromEntries(NAMES.map((name) => [name, { total: 0, count: 0 }])) as Record<
    RowName,
    { total: number; count: number }
  >;
  for (const row of rowsRead(site.n_query, most))
    readRow(site.weights(head, row), site.allowed(head, row), row, ids, sums);
  const mean = (name: RowName): number | null => (sums[name].count === 0 ? null : sums[name].total / sums[name].count);
  const found = Object.fromEntries(NAMES.map((name) => [name, mean(name)])) as Record<RowName, number | null>;
  return { ...found, entropy: found.entropy ?? 0, distance: found.distance ?? 0 };
}

function rowsRead(n: number, most: number | null): number[] {
  const all = Array.from({ length: n }, (_, row) => row);
  if (most === null || n <= Math.max(most, 2 * SAMPLE)) return all;
  const blocks = Math.max(2, Math.floor(most / SAMPLE));
  const starts = Array.from({ length: blocks }, (_, place) => Math.floor((place * (n - SAMPLE)) / (blocks - 1)));
  return starts.flatMap((start) => all.slice(start, start + SAMPLE));
}

function readRow(
  weight: ArrayLike<number>,
  allowed: ArrayLike<number>,
  row: number,
  ids: number[] | null,
  sums: Record<RowName, { total: number; count: number }>,
): void {
  const put = (name: RowName, total: number): void => {
    sums[name].total += total;
    sums[name].count += 1;
  };
  let size = 0;
  for (let key = 0; key < weight.length; key++) size += Math.abs(weight[key]);
  if (size > 0) {
    let [entropy, distance] = [0, 0];
    for (let key = 0; key < weight.length; key++) {
      const share = Math.abs(weight[key]) / size;
      if (share > 0) entropy -= share * Math.log2(share);
      distance += share * Math.abs(row - key);
    }
    put("entropy", entropy);
    put("distance", distance);
    if (row > 0 || ids === null) put("first", weight[0]);
  }
  if (ids === null) return;
  const same = (key: number): boolean => key !== row && ids[key] === ids[row];
  const places: Partial<Record<RowName, (key: number) => boolean>> = {
    itself: (key) => key === row,
    previous: (key) => key === row - 1,
    same,
    induction: (key) => key > 0 && same(key - 1) && key <= row,
  };
  for (const [name, fits] of Object.entries(places) as [RowName, (key: number) => boolean][]) {
    const keys = ids.flatMap((_, key) => (fits(key) ? [key] : []));
    if (keys.some((key) => allowed[key] === 1))
      put(
        name,
        keys.reduce((total, key) => total + weight[key], 0),
      );
  }
}

/** How the best answers change, and how far all of them move: means over the rows, in nats. */
export function compareAnswers(head: number, whole: Matrix, without: Matrix): Effects["effects"][number] {
  let [change, kl] = [0, 0];
  for (let row = 0; row < whole.rows; row++) {
    const [before, after] = [logSoftmax(rowOf(whole, row)), logSoftmax(rowOf(without, row))];
    const best = before.indexOf(before.reduce((most, one) => Math.max(most, one), -Infinity));
    change += (after[best] - before[best]) / whole.rows;
    before.forEach((one, place) => (kl += (Math.exp(one) * (one - after[place])) / whole.rows));
  }
  return { head, change, kl };
}
