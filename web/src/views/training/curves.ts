/** A run's log as curves: which numbers it has, what they are called, and where they lie. */

import { local } from "../../lib/local";
import type { ChartLine, ChartPanel, Point } from "../../lib/chart";
import type { CurveLine, Role } from "../../lib/source";
import { t } from "../../text";

interface Measure {
  key: string;
  name: string;
  colour: Role;
  factor?: number;
  digits?: number;
}

/** The scores of one task, which share a panel; as clearhead/plots/curves.py has them. */
const { names } = t.training;
const FAMILIES: Record<string, Measure[]> = {
  [names.score]: [
    { key: "bleu", name: "BLEU", colour: "value" },
    { key: "chrf", name: "chrF", colour: "key" },
    { key: "exact_match", name: names.exact, colour: "context", factor: 100 },
  ],
  [names.percent]: [
    { key: "accuracy", name: names.accuracy, colour: "value", factor: 100 },
    { key: "macro_f1", name: "macro F1 %", colour: "key", factor: 100 },
  ],
  [names.bits]: [{ key: "bits_per_byte", name: names.bits, colour: "value", digits: 3 }],
}; // prettier-ignore

/** Known lines and new ones, each step of a kind once, in order; what is new wins. */
export function merged(known: readonly CurveLine[], fresh: readonly CurveLine[]): CurveLine[] {
  const lines = new Map<string, CurveLine>();
  for (const line of [...known, ...fresh]) lines.set(`${line.kind} ${line.step}`, line);
  return [...lines.values()].sort((one, other) => one.step - other.step);
}

/** From which step on to ask again: the last one too, as its evaluation is logged after it. */
export function askedAfter(lines: readonly CurveLine[]): number {
  return lines.length === 0 ? -1 : Math.max(...lines.map((line) => line.step)) - 1;
}

/** What the lines of a kind say of a measure; numbers that are none are left out. */
export function pointsOf(lines: readonly CurveLine[], kind: string, key: string, factor = 1): Point[] {
  return lines.flatMap((line) => {
    const value = line[key];
    const able = line.kind === kind && typeof value === "number" && Number.isFinite(value);
    return able ? [{ x: line.step, y: value * factor }] : [];
  });
}

/** The mean around each value, over a twentieth of them all, as many before as after. */
export function smoothed(points: readonly Point[]): Point[] {
  const half = Math.floor(points.length / 40);
  return points.map(({ x }, place) => {
    const reach = Math.min(place, half);
    const near = points.slice(place - reach, place + reach + 1);
    return { x, y: near.reduce((sum, point) => sum + point.y, 0) / near.length };
  });
}

export function panelsOf(lines: readonly CurveLine[], log: boolean): ChartPanel[] {
  return [lossPanel(lines, log), scorePanel(lines), ratePanel(lines)].filter((panel) => panel !== null);
}

/** Whether the losses reach over so many sizes that equal steps would hide the later ones. */
export function wantsLog(lines: readonly CurveLine[]): boolean {
  const losses = lines.flatMap((line) => (typeof line.loss === "number" && line.loss > 0 ? [line.loss] : []));
  return losses.length > 1 && Math.max(...losses) / Math.min(...losses) > 20;
}

/** Every step that the log has a line of, each once. */
export function stepsOf(lines: readonly CurveLine[]): number[] {
  return [...new Set(lines.map((line) => line.step))].sort((one, other) => one - other);
}

/** What the model wrote in the last evaluation up to a step. */
export function samplesAt(lines: readonly CurveLine[], step: number) {
  const found = lines.findLast((line) => line.step <= step && Array.isArray(line.samples) && line.samples.length > 0);
  if (found === undefined) return null;
  return { step: found.step, samples: (found.samples as unknown[]).flatMap(sampleOf) };
}

function sampleOf(value: unknown) {
  const { input, output, reference } = (value ?? {}) as Record<string, unknown>;
  if (typeof input !== "string" || typeof output !== "string") return [];
  return [{ input, output, reference: typeof reference === "string" ? reference : null }];
}

function lossPanel(lines: readonly CurveLine[], log: boolean): ChartPanel | null {
  const [training, dev] = ["training", "evaluation"].map((kind) => pointsOf(lines, kind, "loss"));
  const digits = (value: number): string => local(value < 0.1 ? value.toPrecision(2) : value.toFixed(3));
  const series: ChartLine[] = [
    { name: names.training, colour: "query", points: training, smooth: smoothed(training), dots: false, shown: digits },
    { name: names.dev, colour: "accent", points: dev, smooth: null, dots: true, shown: digits },
  ];
  return panel(names.loss, 220, log, false, series);
}

function scorePanel(lines: readonly CurveLine[]): ChartPanel | null {
  for (const [title, family] of Object.entries(FAMILIES)) {
    const series = family.map(({ key, name, colour, factor, digits }): ChartLine => {
      const points = pointsOf(lines, "evaluation", key, factor);
      return { name, colour, points, smooth: null, dots: true, shown: (value) => local(value.toFixed(digits ?? 1)) };
    });
    const found = panel(title, 150, false, true, series);
    if (found !== null) return found;
  }
  return null;
}

function ratePanel(lines: readonly CurveLine[]): ChartPanel | null {
  const points = pointsOf(lines, "training", "lr");
  const shown = (value: number): string => local(value.toPrecision(2));
  return panel(names.rate, 90, false, true, [
    { name: names.rate, colour: "soft", points, smooth: null, dots: false, shown },
  ]);
}

function panel(title: string, height: number, log: boolean, fromZero: boolean, all: ChartLine[]): ChartPanel | null {
  const lines = all.filter((one) => one.points.length > 0);
  const high = Math.max(...lines.flatMap((line) => line.points.map((point) => point.y)));
  return lines.length === 0 ? null : { title, height, log, ends: fromZero ? [0, 1.08 * high || 1] : undefined, lines };
}
