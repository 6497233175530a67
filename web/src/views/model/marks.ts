/** The part of the model's picture that changes with the weights: lanes, curves of attention, small pictures of heads. */

import { interpolateRgb } from "d3-interpolate";

import { ROLES, type Shade } from "../../lib/colours";
import {
  type Box,
  cableOf,
  type Diagram,
  entryOf,
  KEYS,
  laneOf,
  type SideLayout,
  thumbAt,
  tokensOf,
} from "../../lib/layout";
import type { Mark, Stroke } from "../../lib/marks";
import type { Stream, Thumbs } from "../../lib/source";
import { IDLE } from "../../lib/words";
import { thumbPicture } from "../../lib/thumbs";
import { type Curve, curvePath, type Knot, knotsOf, thickness } from "./numbers";

/** The token that is pointed at. */
export interface Pointed {
  side: string;
  token: number;
}

const PALE = 0.4;

/** The lanes of a side: thick where the vector is long, and coloured as it moves away from its embedding. */
export function laneMarks(
  diagram: Diagram,
  side: SideLayout,
  stream: Stream | undefined,
  { range, pointed, theme }: { range: [number, number]; pointed: Pointed | null; theme: Shade },
): Stroke[] {
  const colour = interpolateRgb(theme === "dark" ? "#5b5f66" : "#c4bfb4", ROLES.context);
  return tokensOf(side).flatMap((token) => {
    const y = laneOf(side, token, diagram.line);
    const pale = pointed !== null && (pointed.side !== side.side || pointed.token !== token);
    const opacity = pale && pointed.side === side.side ? PALE : 1;
    const names = namesIn(diagram, side, y);
    const line = (from: number, to: number, width: number, far: number, share = 1): Stroke => {
      const d = without(names, from, to).map(([start, end]) => `M${start} ${y}H${end}`);
      return { kind: "stroke", d: d.join(""), colour: colour(far), width, opacity: opacity * share };
    };
    const knots = knotsOf(side, stream, token);
    if (knots.length === 0) return [line(side.start, side.end, 2, 0)];
    const thick = (knot: Knot): number => thickness(knot.norm, ...range);
    const lane = [line(side.start - 2, knots[0].x, thick(knots[0]), 0)];
    knots.forEach((knot, index) => {
      lane.push(line(knot.x, knots[index + 1]?.x ?? side.end + 5, thick(knot), 1 - knot.cosine));
    });
    if (diagram.memory && !side.band.below)
      lane.push(
        line(diagram.memory.from + 5, memoryEnd(diagram, side, token), 1.1, 1 - (knots.at(-1)?.cosine ?? 1), 0.6),
      );
    return lane;
  });
}

/** How far a lane stays away from the middle of a key's name, and how wide the longest name is. */
const [NEAR, NAME] = [9, 46];

/** From where to where names of keys stand on a lane: inside the cross-attentions that it passes. */
function namesIn(diagram: Diagram, side: SideLayout, y: number): [number, number][] {
  const keys = diagram.sides[0];
  return side.boxes
    .filter((box) => box.kind === "cross")
    .filter(() => tokensOf(keys).some((key) => Math.abs(entryOf(side, keys, key) - y) < NEAR))
    .map((box) => [box.x + KEYS - 5 - NAME, box.x + KEYS - 2]);
}

/** What is left of a line where some parts are left out. */
function without(parts: [number, number][], from: number, to: number): [number, number][] {
  let left: [number, number][] = [[from, to]];
  for (const [start, end] of parts)
    left = left.flatMap(([a, b]): [number, number][] =>
      end <= a || start >= b
        ? [[a, b]]
        : (
            [
              [a, start],
              [end, b],
            ] as [number, number][]
          ).filter(([c, d]) => d > c),
    );
  return left;
}

/** The encoder's output runs on until it goes down to the last cross-attention. */
function memoryEnd(diagram: Diagram, side: SideLayout, token: number): number {
  const last = diagram.sides.at(-1)!.boxes.findLast((box) => box.kind === "cross");
  return last ? cableOf(last, side, token, diagram.bus) - 5 : side.end;
}

/** The weights of one attention, from the keys' lanes to the queries'. */
export function curveMarks(diagram: Diagram, box: Box, curves: readonly Curve[], pointed: Pointed | null): Stroke[] {
  const queries = diagram.sides.find((side) => side.side === box.side)!;
  const keys = box.kind === "cross" ? diagram.sides[0] : queries;
  const [from, to] = [box.kind === "cross" ? box.x + KEYS : box.x - 1, box.x + box.width + 1];
  return curves.map((curve) => {
    const start = box.kind === "cross" ? entryOf(queries, keys, curve.key) : laneOf(keys, curve.key, diagram.line);
    return {
      kind: "stroke",
      d: curvePath(from, start, to, laneOf(queries, curve.query, diagram.line)),
      colour: ROLES.weight,
      width: 0.6 + 4.2 * curve.weight,
      opacity: curveOpacity(curve, queries, keys, pointed),
      round: true,
    };
  });
}

function curveOpacity(curve: Curve, queries: SideLayout, keys: SideLayout, pointed: Pointed | null): number {
  if (pointed === null) return 0.1 + 0.72 * curve.weight;
  const touched =
    (pointed.side === queries.side && pointed.token === curve.query) ||
    (pointed.side === keys.side && pointed.token === curve.key);
  return touched ? 0.35 + 0.65 * curve.weight : 0.05;
}

/** The small picture of every head of one attention; faint where it does nothing. */
export function thumbMarks(
  side: SideLayout,
  box: Box,
  thumbs: Thumbs | undefined,
  theme: Shade,
  works: (head: number) => boolean,
): Mark[] {
  if (thumbs === undefined) return [];
  return Array.from({ length: box.heads }, (_, head) => {
    const { x, y, size } = thumbAt(side, box, head);
    const image = thumbPicture(thumbs, head, theme);
    return { kind: "picture", image, x, y, width: size, height: size, opacity: works(head) ? 1 : IDLE };
  });
}
