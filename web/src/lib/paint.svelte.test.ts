import { afterEach, expect, test, vi } from "vitest";

import { paintOf } from "./paint.svelte";

afterEach(() => vi.unstubAllGlobals());

test("a colour is read once for each theme, and again while there is none", () => {
  const dataset: Record<string, string> = { theme: "light" };
  const sheet: Record<string, string> = {};
  let asked = 0;
  vi.stubGlobal("document", { documentElement: { dataset } });
  vi.stubGlobal("getComputedStyle", () => {
    asked++;
    return { getPropertyValue: (name: string) => sheet[`${dataset.theme} ${name}`] ?? "" };
  });
  expect(paintOf("--test-ink")).toBe("");
  Object.assign(sheet, { "light --test-ink": " #111", "dark --test-ink": "#eee" });
  expect([paintOf("--test-ink"), paintOf("--test-ink"), asked]).toEqual(["#111", "#111", 2]);
  dataset.theme = "dark";
  expect([paintOf("--test-ink"), paintOf("--test-ink"), asked]).toEqual(["#eee", "#eee", 3]);
  dataset.theme = "light";
  expect([paintOf("--test-ink"), asked]).toEqual(["#111", 3]);
});
