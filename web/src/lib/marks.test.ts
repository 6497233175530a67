import { expect, test } from "vitest";

import { type Mark, markText, paintMarks } from "./marks";

const STROKE: Mark = { kind: "stroke", d: "M0 0H4", colour: "#d55e00", width: 2, opacity: 0.5, round: true };
const IMAGE = { toDataURL: () => "data:image/png;base64,AA==" } as HTMLCanvasElement;
const PICTURE: Mark = { kind: "picture", image: IMAGE, x: 1, y: 2, width: 3, height: 4 };

const CELLS: Mark = {
  kind: "cells",
  colours: ["#f00", "#00f", "#f00"],
  x: 5,
  y: 6,
  width: 30,
  height: 4,
  opacity: 0.5,
};

class FakePath {
  constructor(readonly d: string) {}
}
globalThis.Path2D = FakePath as unknown as typeof Path2D;

/** What is painted, in turn, with what held at the time. */
function painted(marks: Mark[]): string[] {
  const told: string[] = [];
  const context = {
    getTransform: () => ({ a: 1 }),
    globalAlpha: 1,
    stroke(this: Record<string, unknown>, path: FakePath) {
      told.push(`stroke ${path.d} ${this.strokeStyle} ${this.lineWidth} ${this.globalAlpha} ${this.lineCap}`);
    },
    fillRect(this: Record<string, unknown>, ...place: number[]) {
      told.push(`cell ${place.join(" ")} ${this.fillStyle} ${this.globalAlpha}`);
    },
    drawImage(this: Record<string, unknown>, _: unknown, ...place: number[]) {
      told.push(`image ${place.join(" ")} ${this.globalAlpha}`);
    },
  };
  paintMarks(context as unknown as CanvasRenderingContext2D, marks);
  return told;
}

test("marks are painted in their order", () => {
  expect(painted([STROKE, PICTURE])).toEqual(["stroke M0 0H4 #d55e00 2 0.5 round", "image 1 2 3 4 1"]);
});

test("cells lie side by side, and are saved as one path a colour", () => {
  expect(painted([CELLS])).toEqual([
    "cell 5 6 10.4 4 #f00 0.5",
    "cell 15 6 10.4 4 #00f 0.5",
    "cell 25 6 10 4 #f00 0.5",
  ]);
  const text = markText(CELLS);
  expect(text).toContain('translate(5 6)" opacity="0.5"');
  expect(text.match(/<path/g)).toHaveLength(2);
  expect(text).toContain('d="M0 0h10v4h-10zM20 0h10v4h-10z" fill="#f00"');
});

test("marks are written as elements that need no other file", () => {
  expect(markText(STROKE)).toBe(
    '<path d="M0 0H4" fill="none" stroke="#d55e00" stroke-width="2" stroke-opacity="0.5" stroke-linecap="round"/>',
  );
  expect(markText(PICTURE)).toContain('href="data:image/png;base64,AA=="');
});
