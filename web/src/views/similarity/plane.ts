/** Two vectors: what is computed from them, and where they stand in a drawing of the plane. */

import { local } from "../../lib/local";
import { cosine, dot, length } from "../../lib/arithmetic";
import { t } from "../../text";

export type Vector2 = readonly [number, number];

/** Return what is computed of two vectors; the angle in degrees, from 0 to 180, or null where a vector is zero. */
export function measure(a: ArrayLike<number>, b: ArrayLike<number>) {
  const lengths: [number, number] = [length(a), length(b)];
  const product = dot(a, b);
  const fit = cosine(a, b);
  return {
    dot: product,
    scaled: product / Math.sqrt(a.length),
    cosine: fit,
    angle: lengths[0] * lengths[1] === 0 ? null : (Math.acos(Math.min(1, Math.max(-1, fit))) * 180) / Math.PI,
    lengths,
  };
}

/** Any two vectors lie in one plane: the same two in it, lengths and angle kept, half the angle on each side of `middle`. */
export function inTheirPlane(a: ArrayLike<number>, b: ArrayLike<number>, middle = Math.PI / 4): [Vector2, Vector2] {
  const { lengths, angle } = measure(a, b);
  const half = (((angle ?? 0) / 2) * Math.PI) / 180;
  const turned = (size: number, at: number): Vector2 => [size * Math.cos(at), size * Math.sin(at)];
  return [turned(lengths[0], middle - half), turned(lengths[1], middle + half)];
}

/** A word in a drawing, by its middle and its size. */
export interface Word {
  x: number;
  y: number;
  width: number;
  height: number;
}

export function overlap(one: Word, other: Word): boolean {
  return (
    Math.abs(one.x - other.x) < (one.width + other.width) / 2 &&
    Math.abs(one.y - other.y) < (one.height + other.height) / 2
  );
}

/** By how much two words are moved, the upper one up and the other down, so that both can be read. */
export function apart(one: Word, other: Word): [number, number] {
  if (!overlap(one, other)) return [0, 0];
  const by = ((one.height + other.height) / 2 - Math.abs(one.y - other.y)) / 2;
  return one.y < other.y ? [-by, by] : [by, -by];
}

/** Where the foot of one vector's tip falls on the line of another: its shadow. */
export function shadow(of: Vector2, on: Vector2): Vector2 {
  const size = on[0] * on[0] + on[1] * on[1];
  const share = size === 0 ? 0 : (of[0] * on[0] + of[1] * on[1]) / size;
  return [on[0] * share, on[1] * share];
}

/** The arc between two vectors, the short way round, as a path; y goes up in the plane and down in the drawing. */
export function arc(a: Vector2, b: Vector2, radius: number): string {
  const [from, turn] = turnTo(a, b);
  const point = (at: number): string => `${(radius * Math.cos(at)).toFixed(2)} ${(-radius * Math.sin(at)).toFixed(2)}`;
  return `M${point(from)}A${radius} ${radius} 0 0 ${turn > 0 ? 0 : 1} ${point(from + turn)}`;
}

/** The direction half way between two vectors, in radians. */
export function halfway(a: Vector2, b: Vector2): number {
  const [from, turn] = turnTo(a, b);
  return from + turn / 2;
}

/** Return the direction of a vector, and the turn from it to another, the short way round. */
function turnTo(a: Vector2, b: Vector2): [from: number, turn: number] {
  const [from, to] = [a, b].map(([x, y]) => Math.atan2(y, x));
  return [from, Math.atan2(Math.sin(to - from), Math.cos(to - from))];
}

/** What an angle says, in words. */
export function fit(angle: number | null): string {
  if (angle === null) return t.similarity.fitZero;
  if (angle < 5) return t.similarity.fitSame;
  if (angle < 60) return t.similarity.fitMuch;
  if (angle < 85) return t.similarity.fitLittle;
  if (angle <= 95) return t.similarity.fitRight;
  if (angle < 150) return t.similarity.fitAway;
  return t.similarity.fitOpposite;
}

/** To hundredths, whole where it is whole: 14, 9.90, −0.71. */
export function neat(value: number, decimals = 2): string {
  const rounded = Math.round(value * 10 ** decimals) / 10 ** decimals;
  const text = Number.isInteger(rounded) ? String(Math.abs(rounded)) : Math.abs(rounded).toFixed(decimals);
  return local(rounded < 0 ? `−${text}` : text);
}

/** As a factor of a product: negative numbers between brackets. */
export function factor(value: number): string {
  return value < 0 ? `(${neat(value)})` : neat(value);
}

/** "2,3" → [2, 3]; anything else is null. */
export function readVector(text: string | null): Vector2 | null {
  const numbers = (text ?? "").split(",").map(Number);
  const [x, y] = numbers;
  return text !== null && numbers.length === 2 && Number.isFinite(x) && Number.isFinite(y) ? [x, y] : null;
}
