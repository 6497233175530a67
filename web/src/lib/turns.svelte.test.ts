import { flushSync } from "svelte";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { noteScrubbing } from "./scrubbing";
import { giveFrame, Turn } from "./turns.svelte";

const move = { target: { type: "range" } } as unknown as Event;
let waiting: FrameRequestCallback[] = [];
let now = 0;

/** The next frame, so many milliseconds after the last. */
function frame(after = 16): void {
  now += after;
  const due = waiting;
  waiting = [];
  for (const one of due) one(now);
  flushSync();
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("document", { documentElement: { dataset: {} } });
  vi.stubGlobal("requestAnimationFrame", (one: FrameRequestCallback) => waiting.push(one));
  vi.stubGlobal("cancelAnimationFrame", () => (waiting = []));
  vi.stubGlobal("performance", { now: () => now });
});

afterEach(() => {
  vi.runAllTimers();
  vi.useRealTimers();
  vi.unstubAllGlobals();
  waiting = [];
});

function parts(...patient: boolean[]) {
  let step = $state(0);
  const drawn: number[] = patient.map(() => -1);
  const end = $effect.root(() => {
    for (const [place, waits] of patient.entries()) {
      const turn = new Turn(waits);
      const held = $derived(turn.of(() => step));
      $effect(() => void (drawn[place] = held));
    }
  });
  flushSync();
  return { drawn, end, go: (to: number) => flushSync(() => (step = to)) };
}

test("while nothing moves every part follows at once", () => {
  const { drawn, end, go } = parts(false, false);
  go(1);
  expect(drawn).toEqual([1, 1]);
  end();
});

test("while a slider moves one part is drawn a frame, and one that is patient when it rests", () => {
  const { drawn, end, go } = parts(false, false, true);
  noteScrubbing(move);
  go(1);
  expect(drawn).toEqual([0, 0, 0]);
  frame();
  expect(drawn).toEqual([1, 0, 0]);
  go(2);
  frame();
  expect(drawn).toEqual([1, 2, 0]);
  go(3);
  frame();
  expect(drawn).toEqual([3, 2, 0]);
  vi.advanceTimersByTime(150);
  for (let left = 0; left < 3; left++) frame();
  expect(drawn).toEqual([3, 3, 3]);
  go(4);
  expect(drawn).toEqual([4, 4, 4]);
  expect(waiting).toEqual([]);
  end();
});

test("where a frame was late, what draws with every frame gives the parts frames of their own", async () => {
  const { drawn, end, go } = parts(false);
  noteScrubbing(move);
  frame();
  await giveFrame(); // at once: nothing was late
  frame(50);
  go(5);
  const given = giveFrame().then(() => go(6));
  flushSync();
  expect(drawn).toEqual([5]);
  frame();
  await given;
  expect(drawn).toEqual([5]);
  vi.advanceTimersByTime(150);
  frame();
  expect(drawn).toEqual([6]);
  end();
});
