import { expect, test } from "vitest";

import { countText, local } from "./local";

test("a number has the decimal sign of its language", () => {
  expect(local("0.25", "en")).toBe("0.25");
  expect(local("0.25", "de")).toBe("0,25");
  expect(local("−12.5 → 3.1e−4", "de")).toBe("−12,5 → 3,1e−4");
  expect(local("<0.1 %", "de")).toBe("<0,1 %");
  expect(local("−.5", "de")).toBe("−,5");
});

test("a full stop stays a full stop", () => {
  expect(local("14.", "de")).toBe("14.");
  expect(local("Layer 3. Head 2", "de")).toBe("Layer 3. Head 2");
});

test("thousands are set apart", () => {
  expect(countText(12345, "en")).toBe("12,345");
  expect(countText(12345, "de")).toBe("12.345");
});
