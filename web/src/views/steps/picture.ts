/** What the picture of the four steps is drawn from: everything in it that does not move. */

import type { Row } from "../../lib/source";
import { piece, shown } from "../../lib/words";
import type { Layout, Point } from "./geometry";
import type { Motion } from "./motion";
import { between } from "./timeline";
import type { Shown } from "./window";
import { t } from "../../text";
import { spoken } from "../../text/server";

export interface Picture {
  layout: Layout;
  row: Row;
  /** The keys that are drawn. */
  seen: Shown;
  /** Their weights, and last what the keys that are not drawn weigh together. */
  weights: number[];
  /** The key that is chosen. */
  selected: number;
  /** Whether the positions turn queries and keys. */
  turns: boolean;
}

/** Whether the mask has taken a key away by now. */
export function isBlocked({ row }: Pick<Picture, "row">, key: number, motion: Motion): boolean {
  return row.allowed?.[key] === false && motion.masking > 0.5;
}

/** The number on the arrow to a key: it moves from score to scaled to masked. */
export function numberOnArrow(row: Row, key: number, { scaling, masking }: Motion): number | null {
  const [score, scaled, masked] = [row.score, row.scaled, row.masked].map((numbers) => numbers?.[key] ?? null);
  if (masking === 0) return between(score, scaled, scaling);
  if (row.allowed?.[key] === false) return masking < 0.5 ? scaled : masked;
  return between(scaled, masked, masking);
}

/** What the numbers on the arrows are at the moment, and how they were made. */
export function nameOnArrows(
  row: Row,
  { formula, scale }: { formula: string; scale: string },
  { scaling, masking }: Motion,
): { name: string; made: string } {
  if (masking > 0)
    return { name: "masked", made: (row.allowed ?? []).every(Boolean) ? "= scaled" : t.steps.someMasked };
  if (scaling > 0) return { name: "scaled", made: `= score ${scale}` };
  return { name: "score", made: `= ${spoken(formula)}` };
}

/** All numbers of a key, for a reader who does not see the picture. */
export function rowWords(row: Row, key: number): string {
  const numbers = (["score", "scaled", "masked"] as const).map((name) => `${name} ${shown(row[name]?.[key])}`);
  return t.steps.rowWords(key, numbers.join(", "), shown(row.weight[key]));
}

/** A token cut to the room there is for it. */
export function cutToken(text: string, room: number): string {
  const whole = piece(text);
  const letters = Math.max(3, Math.floor(room / 7.6));
  return whole.length > letters ? `${whole.slice(0, letters - 1)}…` : whole;
}

/** Where a value is between its place and the sum: past its weight, then along its flow. */
export function onTheWay({ layout, weights }: Picture, row: number, share: number): Point {
  const start = layout.along(row, weights, 0);
  const { x, width } = layout.rows[row].value;
  if (share > 0.35) return layout.along(row, weights, (share - 0.35) / 0.65);
  return { x: x + width / 2 + ((start.x - x - width / 2) * share) / 0.35, y: start.y };
}

/** The way of a flow before it has a width. */
export function ghostOf({ layout, weights }: Picture, row: number): string {
  const even = weights.map(() => 1 / weights.length);
  const points = Array.from({ length: 13 }, (_, step) => layout.along(row, even, step / 12));
  return `M${points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`;
}
