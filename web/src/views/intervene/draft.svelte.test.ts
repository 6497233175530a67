import { expect, test } from "vitest";

import { Draft } from "./draft.svelte";

function field(): { draft: Draft; arrive: (value: number, of?: string) => void } {
  let now = { of: "head 0, 1 → 2", value: 1.5 as number | null, answer: {} };
  return {
    draft: new Draft(() => now),
    arrive: (value, of = now.of) => (now = { of, value, answer: {} }),
  };
}

test("what arrives is shown until something is typed, and never instead of it", () => {
  const { draft, arrive } = field();
  expect(draft.value).toBe(1.5);
  arrive(2.5);
  expect(draft.value).toBe(2.5);
  draft.value = -3;
  arrive(7);
  expect(draft.value).toBe(-3);
  draft.value = null; // all of it deleted, to type another
  arrive(8);
  expect(draft.value).toBe(null);
});

test("what was sent stays until the next answer, and does not come back after it", () => {
  const { draft, arrive } = field();
  draft.value = 9;
  draft.send();
  expect(draft.value).toBe(9);
  arrive(9);
  arrive(1.5); // undone
  expect(draft.value).toBe(1.5);
});

test("another cell has its own number", () => {
  const { draft, arrive } = field();
  draft.value = 9;
  arrive(4, "head 0, 1 → 3");
  expect(draft.value).toBe(4);
  draft.value = 6;
  draft.forget();
  expect(draft.value).toBe(4);
});
