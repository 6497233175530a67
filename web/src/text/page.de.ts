/** The frame around the views in German. */

import type { pageEn } from "./page.en";

export const pageDe: typeof pageEn = {
  views: "Ansichten",
  groups: { see: "Sehen", understand: "Verstehen", use: "Benutzen", change: "Ändern" },
  options: "Ziel, Beispiele, Trainingsschritte",
  theme: "Hell oder dunkel",
  projector: "Beamer: große Schrift, nichts als das Bild",
  leaveProjector: "Beamer verlassen (Esc)",
  keys: "Tasten",
  close: "Schließen",
  language: "Sprache",
  top: "Der Lauf und der Text",
  compiled: (name) => `kompiliert aus dem Programm ${name}`,
  imported: "importiert",
  training: "im Training",
  parameters: (count) => `${count} Parameter`,
  becomes: "wird zu",
  python: "Als Python kopieren",
  pythonAbout: "Die paar Zeilen Python kopieren, die die Zahlen dieser Ansicht ergeben",
  absent: (why) => `In dieser Ansicht gibt es nichts zu zeigen: ${why}.`,
  toModel: "Zum Modell",
  loading: "Wird geladen",

  where: "Wo man ist",
  allHeads: "Alle Köpfe",
  goTo: "Gehe zu",

  looked: "Der Text, der betrachtet wird",
  fields: { source: "Quelle", text: "Text", target: "Ziel" },
  ownAnswer: "eigene",
  look: "Ansehen",
  enter: "Enter schickt ab, Umschalt Enter beginnt eine neue Zeile",
  examples: "Beispiele",

  help: [
    {
      where: "Überall",
      keys: [
        [["1", "…", "9", "0"], "zu einer Ansicht"],
        [["/"], "einen anderen Text eintippen"],
        [["g"], "zu einem Kopf, als L12H3"],
        [["[", "]"], "der Kopf davor, der nächste"],
        [["{", "}"], "die Schicht davor, die nächste"],
        [["l"], "Lernen: der geführte Weg"],
        [["n", "p"], "beim Lernen: das nächste Kapitel, das davor"],
        [["f"], "Beamer: große Schrift, nichts als das Bild"],
        [["t"], "hell oder dunkel"],
        [[",", "."], "der Trainingsschritt davor, der nächste"],
        [["?"], "diese Hilfe"],
        [["Esc"], "schließen, was oben liegt, oder den Beamer verlassen"],
      ],
    },
    {
      where: "Auf einer Heatmap",
      keys: [
        [["←", "↑", "↓", "→"], "die gelesene Zelle bewegen; die Karte folgt"],
        [["Umschalt", "Pfeile"], "verschieben"],
        [["+", "−", "0"], "näher, weiter weg, alles"],
        [["Enter"], "die Zelle auswählen"],
      ],
    },
    {
      where: "Auf den Köpfen",
      keys: [
        [["←", "↑", "↓", "→"], "der nächste Kopf in dieser Richtung"],
        [["Pos1", "Ende"], "der erste Kopf, der letzte"],
        [["Enter"], "den Kopf öffnen"],
      ],
    },
    {
      where: "Auf Token und Kästen",
      keys: [
        [["Tab"], "zum nächsten"],
        [["←", "→"], "das Token davor, das nächste"],
        [["Enter"], "auswählen oder hineingehen"],
      ],
    },
  ],
};
