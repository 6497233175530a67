import { expect, it } from "vitest";

import { marked } from "./marked";

it("a sentence's marks become its parts, in its order", () => {
  expect(marked("Each [query|Query] of *two*: `look`.")).toEqual([
    { kind: "plain", text: "Each " },
    { kind: "query", text: "Query" },
    { kind: "plain", text: " of " },
    { kind: "strong", text: "two" },
    { kind: "plain", text: ": " },
    { kind: "code", text: "look" },
    { kind: "plain", text: "." },
  ]);
});
