import { expect, it } from "vitest";

import { enlargement, zoomOf } from "./projector";

it("enlarges a page to the screen it is shown on, and a phone's not at all", () => {
  expect([390, 1280, 1920, 3840, 9000].map(enlargement)).toEqual([1, 1.25, 1.5, 3, 3]);
});

it("is 1 where the browser does not tell", () => {
  expect(zoomOf({} as Element)).toBe(1);
  expect(zoomOf({ currentCSSZoom: 1.5 } as unknown as Element)).toBe(1.5);
});
