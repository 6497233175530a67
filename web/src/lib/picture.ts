/** A heat map as a picture to keep: twice as fine as on the screen, with its title, the names of its axes and its colour bar. */

import { type ScaleName, shadeOf, type Shade } from "./colours";
import { hatching, type Inks } from "./heat";
import { type ColourScale, ticksOf } from "./scale";

export interface Legend {
  title: string;
  /** What one number is called: "weight". */
  what: string;
  scale: ColourScale;
  colours: ScaleName;
  theme: Shade;
  /** Whether there are masked cells. */
  masked: boolean;
  inks: Inks;
  /** A family of fonts for words. */
  sans: string;
}

const EDGE = 16;
const LINE = 20;
const AXIS = 20;
const BAR = 12;

/** What a colour scale says in words. */
export function scaleWords(scale: ColourScale, what: string): string {
  const end = tickText(scale.high, scale);
  return `${what} from ${tickText(scale.low, scale)} to ${end}${scale.root ? ", square-root scale" : ""}`;
}

/** The number at a tick, where the last stands for all above it too. */
export function tickText(value: number, scale: ColourScale): string {
  const text = String(Number(value.toPrecision(2))).replace("-", "−");
  return `${scale.clipped && value === scale.high ? "≥ " : ""}${text}`;
}

/** Sets a map, drawn `ratio` times as fine as `width` says, into its frame. */
export function framed(map: HTMLCanvasElement, width: number, ratio: number, legend: Legend): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d")!;
  const wide = Math.max(width, 320) + AXIS + 2 * EDGE;
  context.font = `600 15px ${legend.sans}`;
  const title = wrapped(legend.title, (text) => context.measureText(text).width, wide - 2 * EDGE);
  const top = EDGE + title.length * LINE + 8 + AXIS;
  const bottom = top + map.height / ratio + 18;
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round((bottom + BAR + LINE * 2 + EDGE) * ratio);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = legend.inks.ground;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = legend.inks.ink;
  context.textBaseline = "middle";
  context.font = `600 15px ${legend.sans}`;
  title.forEach((line, index) => context.fillText(line, EDGE, EDGE + (index + 0.5) * LINE));
  drawAxes(context, top, map.height / ratio, legend);
  context.drawImage(map, EDGE + AXIS, top, map.width / ratio, map.height / ratio);
  drawBar(context, bottom, wide, ratio, legend);
  return canvas;
}

function drawAxes(context: CanvasRenderingContext2D, top: number, height: number, { inks, sans }: Legend): void {
  context.font = `600 12px ${sans}`;
  context.fillStyle = inks.key;
  context.fillText("key →", EDGE + AXIS, top - AXIS / 2);
  context.save();
  context.translate(EDGE + AXIS / 2, top + height / 2);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.fillStyle = inks.query;
  context.fillText("← query", 0, 0);
  context.restore();
}

function drawBar(context: CanvasRenderingContext2D, top: number, wide: number, ratio: number, legend: Legend): void {
  const { inks, scale } = legend;
  const [left, length] = [EDGE + AXIS, Math.min(260, (wide - 2 * EDGE - AXIS) * 0.6)];
  for (let step = 0; step < length; step++) {
    context.fillStyle = shadeOf(step / length, legend.colours, legend.theme);
    context.fillRect(left + step, top, 1.5, BAR);
  }
  context.strokeStyle = inks.hatch;
  context.strokeRect(left, top, length, BAR);
  context.font = `12px ${legend.sans}`;
  context.fillStyle = inks.faint;
  for (const { share, value } of ticksOf(scale)) {
    context.textAlign = share === 0 ? "left" : share === 1 ? "right" : "center";
    context.fillText(tickText(value, scale), left + share * length, top + BAR + 10);
  }
  context.textAlign = "left";
  context.fillText(`${legend.what}${scale.root ? " · square-root scale" : ""}`, left, top + BAR + 10 + LINE);
  if (!legend.masked) return;
  const at = left + length + 20;
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.fillStyle = hatching(context, ratio, inks);
  context.fillRect(at * ratio, top * ratio, BAR * 1.6 * ratio, BAR * ratio);
  context.restore();
  context.strokeRect(at, top, BAR * 1.6, BAR);
  context.fillText("masked", at + BAR * 1.6 + 6, top + BAR / 2);
}

/** Lines of words that fit the room. */
export function wrapped(text: string, measure: (text: string) => number, room: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && measure(longer) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}
