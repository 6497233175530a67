import { describe, expect, it } from "vitest";

import { learnEn } from "../text/learn.en";
import { pathOf } from "./chapters";
import { ALL_VIEWS, fake } from "./fakes";
import type { Lesson, Now } from "./lesson";
import type { LessonPlan, LessonStep } from "./plan";

const step = (of: Partial<LessonStep>): LessonStep => ({
  ...{ chapter: null, name: "own-1", title: "Own", said: [], sentence: null, answer: null, choices: [] },
  ...{ exercise: null, view: null, code: null },
  ...of,
});
const plan = (...steps: LessonStep[]): LessonPlan => ({ title: "Mine", steps });

async function lessonOf(): Promise<Lesson> {
  const { source, run, meta } = fake("decoder");
  return { run, meta, source, views: ALL_VIEWS, text: learnEn };
}

describe("a lesson that a teacher wrote", () => {
  it("has its chapters in its order, and leaves out what the run has nothing for", async () => {
    const lesson = await lessonOf();
    const own = step({ name: "own-2", said: ["Hello."] });
    const names = [step({ chapter: "softmax", name: "softmax" }), own, step({ chapter: "tokens", name: "tokens" })];
    const cross = step({ chapter: "cross", name: "cross" }); // a decoder has none
    expect(pathOf(lesson, plan(...names, cross)).map((one) => one.name)).toEqual(["softmax", "own-2", "tokens"]);
  });

  it("says its own words before those of the chapter", async () => {
    const lesson = await lessonOf();
    const [chapter] = pathOf(lesson, plan(step({ chapter: "tokens", name: "tokens", said: ["Look."] })));
    const [plain] = pathOf(lesson, null);
    const [made, without] = [await chapter.prepare(lesson), await plain.prepare(lesson)];
    expect(made.said).toEqual(["Look.", ...without.said]);
    expect(made.task?.ask).toEqual(without.task?.ask);
  });

  it("is solved by a change of the model alone", async () => {
    const lesson = await lessonOf();
    const [own] = pathOf(lesson, plan(step({ answer: "Five" })));
    const { task, place } = await own.prepare(lesson);
    expect(place.view).toBe("intervene");
    const now = (answer: string, edits: unknown[]): Now =>
      ({ view: "intervene", own: {}, meta: { ...lesson.meta, answer, edits } }) as unknown as Now;
    expect((await task!.check(now("twenty five", []))).solved).toBe(false);
    expect((await task!.check(now("twenty four", [{}]))).solved).toBe(false);
    expect((await task!.check(now("twenty  five", [{}]))).solved).toBe(true);
  });

  it("asks with choices", async () => {
    const lesson = await lessonOf();
    const choices = [
      { text: "a", right: false },
      { text: "b", right: true },
    ];
    const [own] = pathOf(lesson, plan(step({ choices })));
    const { question, task } = await own.prepare(lesson);
    expect(task).toBeNull();
    expect([question!.choices, question!.right]).toEqual([["a", "b"], [1]]);
    expect(question!.said).toContain("b");
  });
});
