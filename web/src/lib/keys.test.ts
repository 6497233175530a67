import { expect, it } from "vitest";

import { commandOf, takesLetters } from "./keys";

it("numbers go to the views there are", () => {
  expect(commandOf({ key: "2" })).toEqual({ do: "view", view: "heads" });
  expect(commandOf({ key: "0" })).toEqual({ do: "view", view: "neurons" });
  expect(commandOf({ key: "4" }, ["model", "head", "steps"])).toBeNull();
});

it("keys of the browser are left to it", () => {
  expect(commandOf({ key: "t", ctrlKey: true })).toBeNull();
  expect(commandOf({ key: "q" })).toBeNull();
  expect(commandOf({ key: "?" })).toEqual({ do: "help" });
});

it("what is typed into a field is no command", () => {
  expect(takesLetters({ tagName: "INPUT" })).toBe(true);
  expect(takesLetters({ tagName: "INPUT", type: "number" })).toBe(true);
  expect(takesLetters({ tagName: "INPUT", type: "range" })).toBe(false);
  expect(takesLetters({ tagName: "BUTTON" })).toBe(false);
  expect(takesLetters(null)).toBe(false);
});

it("letters lead to Learn and the projector, and Esc out of it", () => {
  expect(["l", "f", "Escape"].map((key) => commandOf({ key })?.do)).toEqual(["learn", "projector", "leave"]);
});
