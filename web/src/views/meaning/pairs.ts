/** Which tokens are compared, and the pairs of one of them with all the others. */

import type { Spaces } from "../../lib/source";

/** How many tokens are compared at once: what a table can show. */
export const PLACES_AT_ONCE = 16;
const FIRST = 8;

/** The places written in the address; the first few of the text where there are none that fit. */
export function chosenPlaces(written: string | null, count: number): number[] {
  const read = (written ?? "").split(",").map((part) => (/^\d+$/.test(part) ? Number(part) : NaN));
  const fit = [...new Set(read)].filter((place) => place < count).slice(0, PLACES_AT_ONCE);
  return fit.length > 0 ? fit : Array.from({ length: Math.min(FIRST, count) }, (_, place) => place);
}

/** The row and the column of the pair that is chosen, both within the table. */
export function pairOf(written: string | null, count: number): [number, number] {
  const found = /^(\d+),(\d+)$/.exec(written ?? "");
  const [row, column] = found ? [Number(found[1]), Number(found[2])] : [0, 1];
  return [Math.max(0, Math.min(count - 1, row)), Math.max(0, Math.min(count - 1, column))];
}

/** Every other token beside the one of a row, in the order of the text. */
export function pairsFrom(spaces: Spaces, row: number) {
  return spaces.tokens.map((token, index) => ({
    index,
    token,
    embedding: spaces.embedding[row][index],
    query_key: spaces.query_key[row][index],
    score: spaces.score[row][index],
    value: spaces.value[row][index],
  }));
}
