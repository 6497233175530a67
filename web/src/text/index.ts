/** The sentences of the page in the language of its address: `#/head?lang=de`, or else the browser's, or else English.
 *
 * They are chosen once, when the page is loaded: to change the language, write it into the address and load again.
 */

import { de } from "./de";
import { en, type Text } from "./en";

export const LANGUAGES = { en: "English", de: "Deutsch" } as const;
export type Language = keyof typeof LANGUAGES;

const TEXTS: Record<Language, Text> = { en, de };

/** Return the first language that the page has: of the address's `lang`, then of the browser's languages. */
export function chooseLanguage(hash: string, preferred: readonly string[]): Language {
  const asked = new URLSearchParams(hash.split("?")[1] ?? "").get("lang");
  const names = [...(asked === null ? [] : [asked]), ...preferred].map((name) => name.toLowerCase().split("-")[0]);
  return names.find((name): name is Language => name in TEXTS) ?? "en";
}

/** Tests run without a window, in English. */
export const language: Language =
  typeof window === "undefined" ? "en" : chooseLanguage(window.location.hash, window.navigator.languages);
export const t: Text = TEXTS[language];
