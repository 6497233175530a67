/** What every term means, in German. */

import type { glossaryEn } from "./glossary.en";

export const glossaryDe: typeof glossaryEn = {
  attention:
    "Der Schritt, in dem jedes Token von anderen Token Information holt, von manchen mehr, von anderen weniger.",
  token: "Ein Stück Text, für das das Modell eine Nummer hat: ein Wort, ein Wortteil oder ein Zeichen.",
  vocabulary: "Die Liste aller Token, die das Modell kennt. Jedes hat eine Nummer, seine id.",
  embedding: "Der Vektor, mit dem ein Token beginnt. Er wird mit der id nachgeschlagen und wurde im Training gelernt.",
  vector: "Eine Liste von Zahlen. Zwei Vektoren in gleicher Richtung stehen für Ähnliches.",
  position: "Die Stelle eines Tokens im Text. Attention allein sieht eine Menge von Token, keine Reihenfolge.",
  query: "Was ein Token sucht, als Vektor: sein Embedding mal die Matrix W_Q.",
  key: "Woran ein Token zu finden ist, als Vektor: sein Embedding mal die Matrix W_K.",
  value: "Was ein Token weitergibt, wenn es beachtet wird, als Vektor: sein Embedding mal die Matrix W_V.",
  score: "Wie gut ein Key auf eine Query passt: meist ihr Skalarprodukt, noch ohne Skalierung.",
  dot: "Skalarprodukt: zwei Vektoren Zahl für Zahl malnehmen und alles addieren. Groß bei gleicher Richtung.",
  scale: "Der Faktor vor jedem Score, meist 1/√d, wobei d die Länge einer Query ist.",
  mask: "Welche Keys eine Query beachten darf. Was maskiert ist, bekommt das Gewicht 0.",
  causal: "Mit kausaler Maske sieht ein Token sich selbst und was vor ihm steht, nie was nach ihm kommt.",
  softmax: "Macht aus Scores Anteile mit der Summe 1: e hoch jeden Score, geteilt durch die Summe von allen.",
  argmax: "Legt das ganze Gewicht auf den Key mit dem höchsten Score.",
  weighting: "Wie aus den Scores einer Query Gewichte werden: meistens mit Softmax, manchmal anders.",
  weight: "Der Anteil eines Keys an dem, was eine Query holt: in den meisten Modellen zwischen 0 und 1.",
  sum: "Alle Values, jeder mal sein Gewicht, addiert. Das Ergebnis heißt Kontextvektor.",
  context: "Was ein Kopf für ein Token weitergibt: die gewichtete Summe der Values.",
  head: "Eine Attention mit eigenen W_Q, W_K und W_V. Eine Schicht hat mehrere nebeneinander, und jede sucht etwas anderes.",
  layer: "Eine Runde aus Attention und Feed-Forward. Ein Modell ist ein Stapel von Schichten.",
  cross: "Cross-Attention: Die Queries kommen aus der bisherigen Ausgabe, Keys und Values aus dem Quelltext.",
  residual:
    "Residual Stream: der Vektor eines Tokens auf dem Weg durch das Modell. Jeder Teil liest ihn und addiert etwas.",
  norm: "Bringt die Zahlen eines Vektors vor dem nächsten Schritt auf gleiche Größe, damit keine Schicht die andere übertönt.",
  feedforward:
    "Ein kleines Netz für jedes Token allein: Es macht den Vektor breiter, schneidet ab und macht ihn wieder schmal.",
  unit: "Eine Zahl im Inneren des Feed-Forward-Netzes; sie ist groß, wenn ihr Muster da ist.",
  logit: "Die Zahl, die jede mögliche Antwort bekommt, bevor Softmax Wahrscheinlichkeiten daraus macht.",
  probability: "Für wie wahrscheinlich das Modell eine Antwort hält; über alle Antworten ist die Summe 1.",
  greedy: "In jedem Schritt das wahrscheinlichste Token nehmen.",
  beam: "Beam Search: in jedem Schritt die wenigen wahrscheinlichsten Texte behalten, nicht nur einen.",
  sampling: "Das nächste Token nach seiner Wahrscheinlichkeit auslosen, statt immer das wahrscheinlichste zu nehmen.",
  temperature:
    "Wodurch die Scores geteilt werden. Unter 1 bekommt das Wahrscheinlichste mehr, über 1 gleicht es sich an.",
  ablation: "Einen Teil des Modells abschalten und sehen, was der Antwort fehlt.",
  program:
    "Ein Programm in RASP, einer kleinen Sprache für Attention. Sein Compiler schreibt die Gewichte, ohne Training.",
};
