/** Lines over an axis: where their numbers are read, which ticks are named, and where their names stand. */

import { local } from "./local";

export interface Point {
  x: number;
  y: number;
}

/** A line of numbers, and how it is drawn and told. */
export interface ChartLine {
  name: string;
  points: Point[];
  /** The same, evened out; drawn over the points, which then are faint. */
  smooth?: Point[] | null;
  /** The name of a colour of the page: a role, or accent. */
  colour?: string;
  /** A second one, in dashes over the first. */
  over?: string;
  dash?: string;
  dots?: boolean;
  area?: boolean;
  shown: (value: number) => string;
  /** What is said after the number. */
  aside?: string;
}

/** Lines that share a scale. */
export interface ChartPanel {
  title?: string;
  height: number;
  log?: boolean;
  /** The ends of the scale; without them, a little more than the lines reach. */
  ends?: [number, number];
  ticks?: number[];
  lines: ChartLine[];
}

/** The point whose place is nearest. */
export function nearest(points: readonly Point[], x: number): Point | null {
  return points.reduce<Point | null>(
    (best, point) => (best !== null && Math.abs(best.x - x) <= Math.abs(point.x - x) ? best : point),
    null,
  );
}

/** Of the ticks of a logarithmic scale those that leave each other room: powers of ten, with 2 and 5 where they are few. */
export function logTicks(ticks: readonly number[]): number[] {
  const digit = (tick: number): number => Number(tick.toExponential()[0]);
  const leading = (digits: number[]): number[] => ticks.filter((tick) => digits.includes(digit(tick)));
  const [tens, more] = [leading([1]), leading([1, 2, 5])];
  return tens.length > 3 ? tens : more.length > 1 ? more : [...ticks];
}

/** A tick as it is written: without what the computer cannot say exactly. */
export function tickText(tick: number): string {
  return local(String(Number(tick.toPrecision(6))));
}

/** Names set under each other so that none covers another, each as near its own height as can be. */
export function spread(heights: readonly number[], apart: number, low: number, high: number): number[] {
  const order = heights.map((_, index) => index).sort((one, other) => heights[one] - heights[other]);
  const placed = [...heights];
  let floor = low;
  for (const index of order) {
    placed[index] = Math.max(heights[index], floor);
    floor = placed[index] + apart;
  }
  let ceiling = high;
  for (const index of order.toReversed()) {
    placed[index] = Math.min(placed[index], ceiling);
    ceiling = placed[index] - apart;
  }
  return placed;
}
