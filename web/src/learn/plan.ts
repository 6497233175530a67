/** A lesson that a teacher wrote (`clearhead page RUN --lesson FILE`): which chapters in which order, and steps of its own. */

import type { PageExercises, ViewName } from "../lib/source";
import { language } from "../text";
import { beginning } from "../views/design/goal";
import { verdicts } from "../views/exercises/grading.svelte";
import type { Chapter, Lesson, Prepared, Question, Task } from "./lesson";
import type { ChapterName } from "./links";
import { fromMarked } from "./markup";

export interface LessonStep {
  chapter: ChapterName | null;
  name: string;
  title: string | null;
  said: string[];
  sentence: string | null;
  /** What the model shall be made to write. */
  answer: string | null;
  choices: { text: string; right: boolean }[];
  /** An exercise that the page grades, and the view in which it is solved. */
  exercise: string | null;
  view: ViewName | null;
  /** Of an exercise that takes Python: what to begin with, and the command that checks it. */
  code: string | null;
}

export interface LessonPlan {
  title: string;
  steps: LessonStep[];
}

let found: LessonPlan | null | undefined;

/** The lesson in this page; null where it has none. */
export function lessonPlan(): LessonPlan | null {
  if (found === undefined) {
    const text = typeof document === "undefined" ? null : document.getElementById("clearhead-lesson")?.textContent;
    found = text ? (JSON.parse(text) as LessonPlan) : null;
  }
  return found;
}

/** The path of a lesson; `known` are the chapters that this run has something for. */
export function plannedPath(plan: LessonPlan, known: readonly Chapter[]): Chapter[] {
  return plan.steps.flatMap((step) => {
    const chapter = known.find((one) => one.name === step.chapter);
    if (step.chapter !== null) return chapter === undefined ? [] : [withWords(chapter, step)];
    return [step.exercise === null ? ownChapter(step) : exerciseChapter(step, step.exercise)];
  });
}

function withWords(chapter: Chapter, step: LessonStep): Chapter {
  return {
    ...chapter,
    sentence: step.sentence,
    async prepare(lesson) {
      const made = await chapter.prepare(lesson);
      return { ...made, said: [...step.said, ...made.said] };
    },
  };
}

function ownChapter(step: LessonStep): Chapter {
  return {
    name: step.name,
    title: () => step.title ?? "",
    sentence: step.sentence,
    fits: () => true,
    prepare: (lesson) => {
      const view = step.answer !== null && lesson.views.includes("intervene") ? "intervene" : lesson.views[0];
      return Promise.resolve({
        place: { view, own: {} },
        said: step.code === null ? step.said : [...step.said, lesson.text.exercise.inPython],
        code: step.code,
        task: step.answer === null ? null : writeThat(lesson, step.answer),
        question: step.choices.length === 0 ? null : ownQuestion(lesson, step),
        spot: "",
      });
    },
  };
}

function exerciseChapter(step: LessonStep, exercise: string): Chapter {
  return {
    name: step.name,
    title: () => step.title ?? "",
    sentence: step.sentence,
    fits: ({ views }) => views.includes(step.view!),
    async prepare({ source, text }): Promise<Prepared> {
      const all = await source.ask("exercises", { language });
      const goal = all.goals.find((one) => one.asked.name === exercise);
      const words = text.exercise;
      return {
        place: { view: step.view!, own: goal === undefined ? { exercise } : beginning(goal) },
        said: step.said,
        task: {
          ask: words[kindOf(exercise, all)],
          check() {
            const found = verdicts.of(exercise);
            const said = fromMarked(found?.graded.lines[0] ?? "");
            return Promise.resolve({ solved: found?.graded.state === "right", said, of: found?.of ?? null });
          },
        },
        keeps: true,
        spot: "figure:has([data-testid=exercise-asked])",
      };
    },
  };
}

function kindOf(name: string, all: PageExercises): "puzzle" | "goal" | "slip" | "mystery" {
  if (all.slips.some((one) => one.name === name)) return "slip";
  const has = (list: { asked: { name: string } }[]): boolean => list.some((one) => one.asked.name === name);
  return has(all.goals) ? "goal" : has(all.mysteries) ? "mystery" : "puzzle";
}

/** Make the model write something: solved by changes of the model, not by another text. */
function writeThat(lesson: Lesson, wanted: string): Task {
  const words = lesson.text.own;
  const plain = (text: string): string => text.toLowerCase().replace(/\s+/g, " ").trim();
  return {
    ask: words.ask({ answer: wanted }),
    check(now) {
      const answer = now.meta.answer;
      if (now.meta.edits.length === 0) return Promise.resolve({ solved: false, said: words.hint({ answer }) });
      const solved = plain(answer).includes(plain(wanted));
      return Promise.resolve({ solved, said: solved ? words.right({ answer }) : words.wrong({ answer }) });
    },
  };
}

function ownQuestion(lesson: Lesson, step: LessonStep): Question {
  const right = step.choices.flatMap((choice, at) => (choice.right ? [at] : []));
  const named = right.map((at) => step.choices[at].text).join(", ");
  return {
    ask: lesson.text.own.question,
    choices: step.choices.map((choice) => choice.text),
    right,
    said: lesson.text.own.answer({ answer: named }),
  };
}
