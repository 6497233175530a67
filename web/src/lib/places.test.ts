import { expect, it } from "vitest";

import { groupsOf, placeOf, shortName } from "./places";
import type { SideName, SiteMeta, Slot } from "./source";

function site(side: SideName, layer: number, slot: Slot = "attention", n_heads = 9): SiteMeta {
  return { name: `${side}.${layer}.${slot}`, side, layer, slot, n_heads } as SiteMeta;
}

const deep = groupsOf(Array.from({ length: 30 }, (_, layer) => site("decoder", layer)));
const both = groupsOf(
  [0, 1].flatMap((layer) => [
    site("encoder", layer, "attention", 4),
    site("decoder", layer, "attention", 4),
    site("decoder", layer, "cross", 4),
  ]),
);
const now = { site: deep[0].sites[5], head: 7 };

function named(typed: string, groups = deep, from = now): string {
  const found = placeOf(typed, groups, from);
  return "problem" in found ? found.problem : `${found.site.name} ${found.head}`;
}

it("a head is found however it is written", () => {
  for (const typed of ["L12H3", "l12h3", "12.3", "12 3", " layer 12, head 3 ", "D12H3", "12/3"])
    expect(named(typed), typed).toBe("decoder.12.attention 3");
});

it("what is left out stays as it is", () => {
  expect(named("12")).toBe("decoder.12.attention 7");
  expect(named("H3")).toBe("decoder.5.attention 3");
});

it("what is not there is told", () => {
  expect(named("L30H0")).toBe("There is no layer 30: there are 30, counted from 0.");
  expect(named("L3H9")).toBe("There is no head 9: this layer has 9, counted from 0.");
  expect(named("H12")).toContain("There is no head 12");
  expect(named("C1H0")).toBe("This model has no cross-attention.");
  for (const typed of ["", "head", "L", "L1H2H3", "-1", "1e9x", "L12H3;"])
    expect(named(typed), typed).toContain("Type a head as L5H7");
});

it("three kinds of attention have letters of their own", () => {
  expect(both.map((group) => group.title)).toEqual([
    "Encoder self-attention",
    "Decoder self-attention",
    "Cross-attention",
  ]);
  expect(both.map((group) => shortName(group.sites[1], 2, both))).toEqual(["E1H2", "D1H2", "C1H2"]);
  const from = { site: both[2].sites[0], head: 1 };
  expect(named("E1H2", both, from)).toBe("encoder.1.attention 2");
  expect(named("L1H2", both, from)).toBe("decoder.1.cross 2");
  expect(named("cross 1 3", both, from)).toBe("decoder.1.cross 3");
});

it("one kind needs no letter", () => {
  expect(shortName(deep[0].sites[12], 3, deep)).toBe("L12H3");
  expect(shortName(deep[0].sites[12], "mean", deep)).toBe("L12");
});

it("layers of different widths keep the head inside", () => {
  const groups = groupsOf([site("encoder", 0, "attention", 8), site("encoder", 1, "attention", 2)]);
  expect(named("1", groups, { site: groups[0].sites[0], head: 7 })).toBe("encoder.1.attention 1");
});
