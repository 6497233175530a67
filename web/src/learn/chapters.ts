/** The path: every chapter that the run has something for, in the order they are told. */

import { change, feedforward, output, residual, sampling } from "./after";
import { cross, heads, mask, scale, score, softmax, sum, vectors } from "./attention";
import type { Chapter, Lesson } from "./lesson";
import { type ChapterName, CHAPTERS } from "./links";
import { type LessonPlan, lessonPlan, plannedPath } from "./plan";
import { film, layers, roles, summary } from "./questions";
import { embedding, position, tokens } from "./reading";

const ALL: Record<ChapterName, Chapter> = {
  tokens,
  embedding,
  position,
  vectors,
  score,
  scale,
  mask,
  softmax,
  sum,
  roles,
  heads,
  cross,
  residual,
  feedforward,
  layers,
  output,
  sampling,
  film,
  change,
  summary,
};

export function pathOf(lesson: Lesson, plan: LessonPlan | null = lessonPlan()): Chapter[] {
  const known = CHAPTERS.map((name) => ALL[name]).filter((chapter) => chapter.fits(lesson));
  return plan === null ? known : plannedPath(plan, known);
}
