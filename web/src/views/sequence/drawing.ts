/** The sequence diagram as the server draws it, in the words and the room of the page. */

import { local } from "../../lib/local";
import { piece } from "../../lib/words";
import { language, type Language } from "../../text";
import { spoken } from "../../text/server";

/** How wide the drawing is at its own size. */
export function nativeWidth(svg: string): number {
  return Number(/ width="([\d.]+)"/.exec(svg)?.[1] ?? 0);
}

/** The drawing with the page's language, decimal sign and token marks. */
export function inPageWords(svg: string, of: Language = language): string {
  return svg.replace(
    /(<text class="(\w+)"[^>]*>)([^<]*)(?=<\/text>)/g,
    (_, start: string, role: string, said: string) => start + wordsOf(role, said, of),
  );
}

/** Objects that stand for no token. */
const OBJECTS: Partial<Record<Language, Record<string, string>>> = {
  de: { sum: "Summe", output: "Ausgabe", value: "Value" },
};

function wordsOf(role: string, said: string, of: Language): string {
  if (role === "name") {
    const [, start = "", name] = /^([qkv]: )?(.*)$/s.exec(said)!;
    return start === "" ? (OBJECTS[of]?.[name] ?? spoken(piece(name), of)) : start + piece(name);
  }
  const words = said.replaceAll(/(Followed: |“)▁/g, "$1·");
  return spoken(role === "title" ? words : local(words, of), of);
}
