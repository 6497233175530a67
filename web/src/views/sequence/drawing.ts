/** The sequence diagram as the server draws it, in the words and the room of the page. */

import { local } from "../../lib/local";
import { piece } from "../../lib/words";
import { language, type Language } from "../../text";
import { spoken } from "../../text/server";

/** In pixels, as clearhead/tracing/sequence_diagram.py draws: a lifeline's column. */
const COLUMN = 90;
/** The size at which a long text is made to fit; the smallest one; and that of a drawing which scrolls in any case. */
const FITTING = 0.8;
const SMALLEST = 0.72;
const SCROLLING = 0.9;
/** In pixels, what the card around the drawing takes of its room. */
const AROUND = 40;

/** How many lifelines there is room for. */
export function columnsIn(width: number): number {
  return Math.min(99, Math.floor(width / (COLUMN * FITTING)));
}

/** The drawing with the page's language, decimal sign and token marks, as wide as its room. */
export function inPageWords(svg: string, room: number, of: Language = language): string {
  const worded = svg.replace(
    /(<text class="(\w+)"[^>]*>)([^<]*)(?=<\/text>)/g,
    (_, start: string, role: string, said: string) => start + wordsOf(role, said, of),
  );
  return worded.replace(/ width="([\d.]+)" height="[\d.]+"/, (_, width: string) => {
    const fits = Number(width) * SMALLEST <= room - AROUND;
    const least = Math.round(Number(width) * (fits ? SMALLEST : SCROLLING));
    return ` style="width:100%;min-width:${least}px;max-width:${width}px"`;
  });
}

/** Objects that stand for no token. */
const OBJECTS: Partial<Record<Language, Record<string, string>>> = { de: { sum: "Summe", output: "Ausgabe" } };

function wordsOf(role: string, said: string, of: Language): string {
  if (role === "name") {
    const [, start = "", name] = /^([qkv]: )?(.*)$/s.exec(said)!;
    return start === "" ? (OBJECTS[of]?.[name] ?? spoken(piece(name), of)) : start + piece(name);
  }
  const words = said.replaceAll(/(Followed: |“)▁/g, "$1·");
  return spoken(role === "title" ? words : local(words, of), of);
}
