/** What changes as a whole, many times a second: painted on a canvas over a drawing, and written into it when it is saved.
 *
 * As elements of the drawing, a few hundred lines cost more time in style, layout and painting than a frame has. */

import { Cache } from "./cache";

export interface Stroke {
  kind: "stroke";
  /** The way, as an SVG path has it. */
  d: string;
  colour: string;
  width: number;
  opacity: number;
  round?: boolean;
}

export interface Picture {
  kind: "picture";
  image: HTMLCanvasElement;
  x: number;
  y: number;
  width: number;
  height: number;
  opacity?: number;
}

/** A row of coloured cells, all of one width. */
export interface Cells {
  kind: "cells";
  colours: readonly string[];
  x: number;
  y: number;
  width: number;
  height: number;
  opacity: number;
}

export type Mark = Stroke | Picture | Cells;

/** Ways that were read: while something is scrubbed most of a drawing stays where it is, and to read a way takes longer
 * than to paint it. */
const ways = new Cache<Path2D>(4096);

function wayOf(d: string): Path2D {
  const known = ways.get(d);
  if (known !== undefined) return known;
  const made = new Path2D(d);
  ways.set(d, made);
  return made;
}

export function paintMarks(context: CanvasRenderingContext2D, marks: readonly Mark[]): void {
  // A cell that is larger than a pixel has sharp edges; what is drawn smaller than it is would lose rows.
  const scale = context.getTransform().a;
  for (const mark of marks) {
    context.imageSmoothingEnabled = mark.kind === "picture" && mark.image.width > mark.width * scale;
    paintMark(context, mark);
  }
  context.globalAlpha = 1;
}

function paintMark(context: CanvasRenderingContext2D, mark: Mark): void {
  context.globalAlpha = mark.opacity ?? 1;
  if (mark.kind === "picture") {
    context.drawImage(mark.image, mark.x, mark.y, mark.width, mark.height);
  } else if (mark.kind === "cells") {
    paintCells(context, mark);
  } else {
    context.strokeStyle = mark.colour;
    context.lineWidth = mark.width;
    context.lineCap = mark.round ? "round" : "butt";
    context.stroke(wayOf(mark.d));
  }
}

/** What a cell goes on under the next one, so that no ground shows between them. */
const OVERLAP = 0.4;

function paintCells(context: CanvasRenderingContext2D, { colours, x, y, width, height }: Cells): void {
  const cell = width / colours.length;
  colours.forEach((colour, index) => {
    context.fillStyle = colour;
    const more = index < colours.length - 1 ? OVERLAP : 0;
    context.fillRect(x + index * cell, y, cell + more, height);
  });
}

/** One path a colour, so that a row of 512 cells stays a light drawing. */
function cellsText({ colours, x, y, width, height, opacity }: Cells): string {
  const cell = width / colours.length;
  const paths = new Map<string, string>();
  colours.forEach((colour, index) => {
    const path = `M${rounded(index * cell)} 0h${rounded(cell)}v${rounded(height)}h${rounded(-cell)}z`;
    paths.set(colour, (paths.get(colour) ?? "") + path);
  });
  const drawn = [...paths].map(([colour, d]) => `<path d="${d}" fill="${colour}" shape-rendering="crispEdges"/>`);
  return `<g transform="translate(${x} ${y})" opacity="${opacity}">${drawn.join("")}</g>`;
}

function rounded(value: number): number {
  return Math.round(value * 100) / 100;
}

/** The same marks as elements of an SVG. */
export function markText(mark: Mark): string {
  if (mark.kind === "picture") {
    const { x, y, width, height, image, opacity = 1 } = mark;
    const place = `x="${x}" y="${y}" width="${width}" height="${height}" opacity="${opacity}"`;
    return `<image ${place} preserveAspectRatio="none" style="image-rendering:pixelated" href="${image.toDataURL()}"/>`;
  }
  if (mark.kind === "cells") return cellsText(mark);
  const line = `stroke="${mark.colour}" stroke-width="${mark.width}" stroke-opacity="${mark.opacity}"`;
  return `<path d="${mark.d}" fill="none" ${line}${mark.round ? ' stroke-linecap="round"' : ""}/>`;
}
