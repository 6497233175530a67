import { expect, it } from "vitest";

import { enlargement, fitted, zoomOf } from "./projector";

it("enlarges a page to the screen it is shown on, and a phone's not at all", () => {
  const screens = [[390, 844], [1280, 720], [1440, 900], [1920, 1080], [3840, 1080], [9000, 9000]]; // prettier-ignore
  expect(screens.map(([width, height]) => enlargement(width, height))).toEqual([1, 1.1, 1.125, 1.5, 1.5, 3]);
});

it("is 1 where the browser does not tell", () => {
  expect(zoomOf({} as Element)).toBe(1);
  expect(zoomOf({ currentCSSZoom: 1.5 } as unknown as Element)).toBe(1.5);
});

it("shows the first row of pictures whole, and never larger than before", () => {
  const figure = (top: number, bottom: number) => ({ getBoundingClientRect: () => ({ top, bottom }) });
  const main = (...figures: unknown[]): Element => ({ querySelectorAll: () => figures }) as unknown as Element;
  expect(fitted(main(figure(100, 700), figure(900, 2000)), 1.5, 720)).toBe(1.5);
  expect(fitted(main(figure(100, 900), figure(103, 1000)), 1, 720)).toBeCloseTo(0.716);
  expect(fitted(main(figure(100, 9000)), 1, 720)).toBe(0.6);
  expect(fitted(main(), 1.2, 720)).toBe(1.2);
});
