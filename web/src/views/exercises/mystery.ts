/** What a model whose program is not told does with two texts, and with each edge of one carrying the other's. */

import type { MysteryModel } from "../../lib/source";

/** Return the answers to two texts, null to what is none of its texts; and for each edge the answer to the first if this
 * edge alone carries the other's, null if they are not alike long. */
export function experiment(model: MysteryModel, text: string, other: string) {
  const [one, two] = [text, other].map((each) => model.texts.indexOf(each));
  const answer = one < 0 ? null : shown(model.answers[one]);
  const otherAnswer = two < 0 ? null : shown(model.answers[two]);
  if (answer === null || otherAnswer === null || text.length !== other.length)
    return { answer, otherAnswer, patched: null };
  const patched = model.edges.map(() => ({ answer, changed: false }));
  for (const [edge, into, from, row] of model.changes)
    if (into === one && from === two) patched[edge] = { answer: shown(model.changed[row]), changed: true };
  return { answer, otherAnswer, patched };
}

function shown(row: readonly unknown[]): string {
  return row.map((value) => (value === null ? "–" : String(value))).join(" ");
}
