import { afterEach, expect, test, vi } from "vitest";

import { followScrubbing, gliding, isScrubbing, noteScrubbing } from "./scrubbing";

afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("while a slider moves nothing glides, and a while after it everything does again", () => {
  vi.useFakeTimers();
  const dataset: Record<string, string> = {};
  vi.stubGlobal("document", { documentElement: { dataset } });
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  vi.stubGlobal("cancelAnimationFrame", () => {});
  const typed = { target: { type: "text" } } as unknown as Event;
  const moved = { target: { type: "range" } } as unknown as Event;
  const told: boolean[] = [];
  followScrubbing(() => told.push(isScrubbing()));
  noteScrubbing(typed);
  expect([isScrubbing(), gliding()]).toEqual([false, "smooth"]);
  noteScrubbing(moved);
  vi.advanceTimersByTime(100);
  noteScrubbing(moved);
  vi.advanceTimersByTime(100);
  expect([isScrubbing(), gliding(), "scrubbing" in dataset]).toEqual([true, "auto", true]);
  vi.advanceTimersByTime(100);
  expect([isScrubbing(), gliding(), "scrubbing" in dataset]).toEqual([false, "smooth", false]);
  expect(told).toEqual([true, false]);
});
