/** How far everything in the picture of the four steps has come at a time, each from 0 to 1. */

import { progress, staggered, SUMMED } from "./timeline";

export interface Motion {
  time: number;
  /** The input is read. */
  read: number;
  /** Keys and values leave their tokens. */
  split: number;
  /** The query is made by its map. */
  mapping: number;
  /** The query is turned by its position. */
  turning: number;
  scaling: number;
  masking: number;
  /** The arrow of a row grows from the query to its key. */
  arrow(row: number): number;
  /** The flow of a row becomes as wide as its weight. */
  weighing(row: number): number;
  /** The value of a row moves into the sum. */
  travel(row: number): number;
  /** How much of a row's value is in the sum. */
  arrived(row: number): number;
}

/** `rows`: how many there are; `turns`: whether the query is turned, first its map and then the turn. */
export function motionAt(time: number, rows: number, turns: boolean): Motion {
  const split = progress(time, 0.3, 1);
  const travel = (row: number): number => staggered(time, 3, SUMMED, row, rows);
  return {
    time,
    read: progress(time, 0, 0.35),
    split,
    mapping: turns ? progress(time, 0.3, 0.6) : split,
    turning: progress(time, 0.65, 1),
    scaling: progress(time, 2, 2.35),
    masking: progress(time, 2.35, 2.6),
    arrow: (row) => staggered(time, 1, 2, row, rows),
    weighing: (row) => staggered(time, 2.6, 3, row, rows),
    travel,
    arrived: (row) => progress(travel(row), 0.8, 1),
  };
}
