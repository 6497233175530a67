import { expect, it } from "vitest";

import { type AskCurves, askOwn, type CurveLine, type Curves, type RunFacts, type Source } from "../../lib/source";
import { follow, type Log } from "./follow";

const line = (step: number, kind = "training"): CurveLine => ({ kind, step });

function logged(answers: [CurveLine[], boolean][]): { source: Pick<Source, "ask">; asked: number[] } {
  const asked: number[] = [];
  const curves = async ({ after = -1 }: AskCurves): Promise<Curves> => {
    asked.push(after);
    const [lines, training] = answers.shift()!;
    return { lines, training, last: 0 };
  };
  const own = { curves, run: async () => ({ steps: [1, 2], film: [0, 1] }) as RunFacts };
  return { source: { ask: (name, given) => askOwn(own, name, given) }, asked };
}

const KNOWN: Log = { lines: [line(5), line(10)], training: true, checkpoints: [1], film: [0] };

it("adds what is new", async () => {
  const { source, asked } = logged([[[line(10), line(15)], true]]);
  const found = await follow(source, KNOWN, false);
  expect(asked).toEqual([9]);
  expect(found.lines.map(({ step }) => step)).toEqual([5, 10, 15]);
  expect(found.checkpoints).toBe(KNOWN.checkpoints);
  expect(found.film).toBe(KNOWN.film);
});

it("reads all of a log that was cut back", async () => {
  const { source, asked } = logged([
    [[], true],
    [[line(5)], true],
  ]);
  expect((await follow(source, KNOWN, false)).lines).toEqual([line(5)]);
  expect(asked).toEqual([9, -1]);
});

it("asks for the checkpoints after an evaluation and at the end of training, but not at first", async () => {
  const evaluated: [CurveLine[], boolean][] = [[[line(10), line(10, "evaluation")], true]];
  const ended: [CurveLine[], boolean][] = [[[line(10)], false]];
  expect((await follow(logged(structuredClone(evaluated)).source, KNOWN, false)).checkpoints).toEqual([1, 2]);
  expect(await follow(logged(ended).source, KNOWN, false)).toMatchObject({ checkpoints: [1, 2], film: [0, 1] });
  expect((await follow(logged(evaluated).source, KNOWN, true)).checkpoints).toEqual([1]);
});
