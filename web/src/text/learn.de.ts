/** The chapters of Learn in German. */

import type { LearnText } from "./learn.en";

const keys = (count: number): string => (count === 1 ? "einen Key" : `${count} Keys`);

export const learnDe: LearnText = {
  title: "Lernen",
  about: "Ein geführter Weg durch dieses Modell",
  invitation: (count) =>
    `Neu hier? ${count} kurze Kapitel führen durch dieses Modell, vom Text bis zur Antwort, mit seinen eigenen Zahlen.`,
  start: "Weg beginnen",
  dismiss: "Nein, danke",
  close: "Lernen schließen",
  fold: "Kapitel einklappen",
  unfold: "Kapitel ausklappen",
  chapters: "Kapitel",
  place: (at, count) => `Kapitel ${at} von ${count}`,
  previous: "Zurück",
  next: "Weiter",
  show: "Zeigen",
  task: "Aufgabe",
  solved: "Gelöst",
  hint: "Hinweis",
  notYet: "Noch nicht",
  alreadySolved: "Schon gelöst.",
  noTask: "Keine Aufgabe in diesem Kapitel: Dieser Text gibt keine her.",
  loading: "Die Zahlen dieses Textes werden gelesen …",
  failed: (why) => `Die Zahlen zu diesem Kapitel sind nicht zu bekommen: ${why}`,
  finished: "Das war der ganze Weg durch das Modell. Jetzt stehen alle Ansichten offen, auch für eigene Texte.",
  formula: (lit) => `Die Formel der Attention; in diesem Kapitel geht es um ${lit}`,
  formulaAlone: "Die Formel der Attention",
  progress: (solved) => `gelöst: ${solved}`,
  handIn: "Abgeben",
  handInAbout: "Schreibe deinen Namen und gib die Zeile deiner Lehrerin oder deinem Lehrer. Nichts wird verschickt.",
  name: "Name",
  copy: "Kopieren",
  guess: "Erst raten",
  guessedRight: "Wie du gesagt hast.",
  guessedWrong: "Anders, als du gesagt hast.",
  exercise: {
    puzzle:
      "Baue ein Programm aus Menüs: Füge eine Zeile an, und wähle. Die letzte Zeile ist die Antwort, an jedem Text geprüft.",
    goal: "Gib Wörtern ihre Querys und Keys, und Values, wo danach gefragt ist. Jeder Satz wird probiert.",
    slip: "Ein Schritt dieses kleinen Modells ist falsch gerechnet. Zeig auf ihn, und wähle die Formel, die ihn richtet.",
    mystery:
      "Was berechnet dieses Modell, und über welche Kanten? Probiere es, markiere die Kanten, und schreibe sein Programm.",
    inPython:
      "Diese Aufgabe braucht Python: Schreibe die Antwort in eine Datei. Der Befehl legt die Datei an und prüft sie.",
  },
  own: {
    question: "Wähle eine Antwort.",
    answer: (of) => `Richtig: ${of.answer}.`,
    ask: (of) => `Ändere einen Kopf, ein Gewicht oder einen Score, bis das Modell **${of.answer}** schreibt.`,
    hint: (of) => `Das Modell schreibt „${of.answer}“. Noch ist nichts geändert.`,
    wrong: (of) => `Mit deiner Änderung schreibt es „${of.answer}“.`,
    right: (of) => `Jetzt schreibt es „${of.answer}“.`,
  },

  tokens: {
    title: "Token",
    said: (of) => [
      `Das Modell liest keine Buchstaben. Es liest [[token|Token]], Stücke, für die es eine Nummer hat: ${of.list}.`,
      `Das sind ${of.count}, aus einem [[vocabulary|Vokabular]] von ${of.vocabulary}. Im Bild hat jedes seine eigene Spur, daneben steht seine id.`,
      ...(of.starts === null ? [] : [`${of.starts} ist ein Zeichen, kein Text: Es sagt nur, dass ein Text beginnt.`]),
    ],
    ask: (of) => `Das Token mit der id **${of.id}** auswählen.`,
    wrong: (of) => `${of.token} hat die id ${of.id}.`,
    hint: "Die ids stehen links im Bild neben den Token.",
    right: (of) => `${of.token} ist die Nummer ${of.id}. Für das Modell ist es diese Zahl und sonst nichts.`,
  },
  embedding: {
    title: "Embedding",
    said: (of) => [
      `Jede id wird in einer Tabelle nachgeschlagen: Aus ${of.token} wird ein [[vector|Vektor]] aus ${of.d} Zahlen, das [[embedding|Embedding]].`,
      of.named
        ? `Gelernt ist hier nichts: Der Compiler hat jeder der ${of.d} Zahlen eine Bedeutung gegeben.`
        : `Die Zahlen sind gelernt. Was an ähnlichen Stellen vorkommt, hat ähnliche Vektoren bekommen.`,
      ...(of.cosine === ""
        ? []
        : [
            `Die Tabelle zeigt, wie ähnlich sich zwei sind: 1 ist dieselbe Richtung. ${of.one} und ${of.other}: ${of.cosine}.`,
          ]),
    ],
    ask: "In der Tabelle der Embeddings die zwei **verschiedenen** Token auswählen, die sich am ähnlichsten sind.",
    wrong: (of) => `${of.one} und ${of.other} haben ${of.cosine}. Ein anderes Paar hat mehr.`,
    same: "Das ist zweimal dasselbe Token, natürlich gleicht es sich. Gesucht sind zwei verschiedene.",
    hint: "Die höchste Zahl außerhalb der Diagonale suchen und anklicken.",
    right: (of) =>
      `${of.one} und ${of.other}, mit ${of.cosine}. Niemand hat dem Modell gesagt, welche Wörter verwandt sind.`,
    askToken: (of) => `Im Feld rechts ${of.token} auswählen und andere Zahlen sehen.`,
    hintToken: "Die Liste der Token steht oben im Feld.",
    rightToken: (of) => `Mit diesen Zahlen beginnt ${of.token}, in jedem Text.`,
  },
  position: {
    title: "Position",
    said: (of) => [
      of.causal
        ? `Ein Score vergleicht zwei Token, nicht ihre Plätze. Die Maske dieses Modells verdeckt, was später kommt: Ein Token weiß, was vor ihm steht, aber nicht in welcher Reihenfolge und nicht wie weit entfernt.`
        : `Attention sieht eine Menge, keine Reihenfolge: Ohne Hilfe ist ${of.first} vor ${of.second} dasselbe wie ${of.second} vor ${of.first}.`,
      {
        added: `Deshalb addiert dieses Modell zu jedem Embedding einen Vektor für die [[position|Position]] (${of.kind}). Jede Stelle hat ihr eigenes Muster.`,
        turned: `Deshalb dreht dieses Modell Queries und Keys um einen Winkel, der mit der [[position|Position]] wächst (${of.kind}). Es zählt, wie weit zwei Token auseinanderstehen.`,
        biased: `Deshalb addiert dieses Modell zu jedem Score eine Zahl, die vom Abstand der beiden Token abhängt (${of.kind}).`,
      }[of.how],
    ],
    ask: (of) => `Den Regler auf die Position von ${of.token} schieben. Gezählt wird ab 0.`,
    wrong: (of) =>
      of.token === null
        ? `An Position ${of.at} hat dieser Text kein Token.`
        : `An Position ${of.at} steht ${of.token}.`,
    hint: "Die Token von links abzählen und mit 0 beginnen.",
    right: (of) => `${of.token} steht an ${of.at}, und das ist das Muster dieser Stelle.`,
  },
  vectors: {
    title: "Query, Key, Value",
    said: (of) => [
      `Aus seinem Vektor macht jedes Token drei kürzere. Die [[query|Query]] sagt, was es sucht, der [[key|Key]], woran man es findet, der [[value|Value]], was es weitergibt.`,
      `Das tun drei Matrizen, ${of.learned ? "im Training gelernt" : "vom Compiler geschrieben"}: W_Q, W_K und W_V. Jede macht aus ${of.d} Zahlen ${of.dHead}.`,
      `Hier fragt ${of.query}, und jedes Token, das es trifft, zeigt seinen Key.`,
      ...(of.shared ? [`In dieser Schicht teilen sich mehrere Köpfe ihre Keys und Values.`] : []),
    ],
    ask: (of) => `Jetzt umgekehrt: ${of.query} als Query und ${of.key} als Key auswählen.`,
    hintQuery: (of) => `Zuerst über dem Bild ${of.query} als Query auswählen.`,
    hintKey: (of) => `Gut. Jetzt im Bild ${of.key} anklicken.`,
    right: (of) =>
      `Jedes Token spielt beide Rollen: ${of.query} fragt mit seiner Query und wird an seinem Key gefunden.`,
  },
  score: {
    title: "Score",
    said: (of) => [
      of.dot
        ? `Wie gut passt ein Key auf eine Query? Beide Zahl für Zahl malnehmen und alles addieren: ihr [[dot|Skalarprodukt]], hier aus ${of.d} Produkten.`
        : `Wie gut passt ein Key auf eine Query? Hier ist der [[score|Score]] ${of.formula}.`,
      `${of.query} mit ${of.key} ergibt **${of.score}**. Zeigen zwei Vektoren in dieselbe Richtung, ist der Score hoch; zeigen sie auseinander, ist er negativ.`,
    ],
    ask: (of) =>
      `Den Key auswählen, der am besten auf ${of.query} passt: den höchsten Score${of.masks ? " unter denen, die es sehen darf" : ""}.`,
    wrong: (of) => `${of.key} hat ${of.score}. Es gibt einen höheren.`,
    blocked: (of) => `${of.key} ist für diese Query verdeckt. Gesucht ist der beste der anderen.`,
    hint: "Die Zahlen stehen an den Pfeilen. Ein Klick auf einen Key zeigt, wie sein Score entsteht.",
    right: (of) => `${of.query} mit ${of.key}: ${of.score}.`,
  },
  scale: {
    title: "Skalierung",
    guess: (of) =>
      `Das größte Gewicht von ${of.query} ist ${of.now}. Wird die [[temperature|Temperatur]] halbiert, dann …`,
    choices: ["wächst es", "bleibt es", "schrumpft es"],
    guessed: (of) => `Aus ${of.now} wird **${of.then}**.`,
    said: (of) => [
      of.root === null
        ? `Jeder Score wird mit ${of.scale} malgenommen${of.reason === "" ? "" : ` (${of.reason})`}. So wird aus ${of.score} **${of.scaled}**.`
        : `Eine Summe aus ${of.d} Produkten wächst mit deren Zahl. Deshalb wird jeder Score durch √${of.d} = ${of.root} geteilt: Aus ${of.score} wird **${of.scaled}**.`,
      ...(of.without === null
        ? []
        : [
            `Ohne das wäre das größte Gewicht von ${of.query} ${of.without} statt ${of.now}. Ein Kopf, der sich zu sicher ist, lernt nichts mehr.`,
          ]),
    ],
    askSharp: (of) =>
      `Rückgängig machen: die [[temperature|Temperatur]] senken, bis das größte Gewicht von ${of.query} mindestens **${of.most}** ist.`,
    askEven: (of) =>
      `Die [[temperature|Temperatur]] erhöhen, bis das größte Gewicht von ${of.query} höchstens **${of.most}** ist.`,
    wrong: (of) => `Das größte Gewicht ist ${of.weight}.`,
    hint: "Der Regler steht unter den Karten, neben der Zelle. Die Temperatur teilt die Scores noch einmal.",
    right: (of) => `Jetzt ist es ${of.weight}. Die Scores sind dieselben, nur die Skalierung ist anders.`,
    ask: (of) => `Den Key mit dem niedrigsten skalierten Score für ${of.query} auswählen.`,
    wrongKey: (of) => `${of.key} hat ${of.scaled}. Es gibt einen niedrigeren.`,
    hintKey: "Im Bild einen Key anklicken.",
    rightKey: (of) => `${of.key}, mit ${of.scaled}.`,
  },
  mask: {
    title: "Maske",
    said: (of) => [
      of.causal
        ? of.writes
          ? `Das Modell schreibt von links nach rechts. Im Training bekommt es die ganze Antwort auf einmal; was später kommt, muss verdeckt sein, sonst schriebe es nur ab.`
          : `Das Modell soll sagen, was als Nächstes kommt. Deshalb darf ein Token nicht sehen, was nach ihm steht, sonst gäbe es nichts zu raten.`
        : `Nicht jede Query darf hier jeden Key sehen.`,
      `Die [[mask|Maske]] setzt ${of.blocked} an die Stelle der verbotenen Scores; ihr Gewicht wird 0. Das sind die schraffierten Zellen: ${of.hidden} von ${of.total}.`,
      ...(of.causal ? [`${of.first} steht am Anfang und sieht deshalb nur sich selbst.`] : []),
    ],
    ask: (of) => `Eine Query auswählen, die genau **${keys(of.count)}** sehen darf.`,
    wrong: (of) => `${of.query} darf ${keys(of.count)} sehen.`,
    hint: "Zeilen sind Queries. Die nicht schraffierten Zellen einer Zeile zählen und die Zeile anklicken.",
    right: (of) => `${of.query} sieht ${keys(of.count)} und nicht mehr.`,
  },
  softmax: {
    titles: { softmax: "Softmax", argmax: "Alles auf den Besten", kernelized: "Anteile der Zeile", rows: "Gewichte" },
    said: (of) =>
      ({
        softmax: [
          `Aus Scores werden Anteile eines Ganzen. [[softmax|Softmax]] nimmt e hoch jeden Score und teilt durch die Summe: alle positiv, zusammen 1.`,
          of.second === null
            ? `${of.query} kann nur ${of.key} sehen, also bekommt es **${of.weight}**.`
            : `Vorher wird der höchste Score der Zeile abgezogen: ${of.masked}, bei ${of.key}. So zählt ${of.second.key} e^(${of.second.power}) = ${of.second.exponential}, und alle zusammen zählen ${of.total}.`,
          ...(of.second === null
            ? []
            : [
                `${of.query} blickt mit **${of.weight}** auf ${of.key} und mit **${of.second.weight}** auf ${of.second.key}. ${of.second.close ? "Liegen die Scores nah beieinander, teilen sie sich das Gewicht." : "Aus einem kleinen Vorsprung im Score wird ein großer im Gewicht."}`,
              ]),
        ],
        argmax: [
          `Softmax gibt es hier nicht: Dieses Modell legt das ganze Gewicht auf den besten Key ([[argmax|Argmax]]).`,
          of.ties > 1
            ? `Für ${of.query} teilen sich ${of.ties} Keys den höchsten Score ${of.masked}; ${of.key} bekommt **${of.weight}**.`
            : `Für ${of.query} ist der höchste Score ${of.masked}, bei ${of.key}: Er bekommt **${of.weight}**, die anderen nichts.`,
          `Softmax kommt dem nahe, wenn die Scores weit auseinanderliegen.`,
        ],
        kernelized: [
          `Softmax gibt es hier nicht. Die Scores sind so gebaut, dass keiner negativ ist, und jeder wird durch die Summe seiner Zeile geteilt.`,
          `Für ${of.query} und ${of.key}: ${of.exponential} von ${of.total} sind **${of.weight}**.`,
        ],
        rows: [
          `Hier werden aus Scores auf eigene Weise Gewichte: ${of.rule}.`,
          `${of.query} blickt mit **${of.weight}** auf ${of.key}.`,
        ],
      })[of.kind],
    ask: (of) => `Eine Query auswählen, deren größtes Gewicht auf ${of.key} liegt.`,
    wrong: (of) => `${of.query} blickt am meisten auf ${of.key}, mit ${of.weight}.`,
    hint: "Die Queries der Reihe nach ausprobieren; der dickste Pfeil zeigt das größte Gewicht.",
    right: (of) => `${of.query} blickt mit **${of.weight}** auf ${of.key}.`,
  },
  sum: {
    title: "Gewichtete Summe",
    said: (of) => [
      `Die Gewichte sagen, wie viel; die [[value|Values]] sagen, was. Jeder Value wird mit seinem Gewicht malgenommen, dann wird alles addiert.`,
      `${of.query} nimmt **${of.weight}** vom Value von ${of.key}${of.rest === null ? "" : ` und ${of.rest} von allen anderen`}. Die ${of.d} Zahlen, die herauskommen, sind sein [[context|Kontextvektor]].`,
      `Bei gleichem Gewicht zählt ein langer Value mehr als ein kurzer.`,
    ],
    ask: (of) =>
      `Den Key auswählen, der ${of.query} am meisten gibt: den längsten Vektor, wenn der Value mit seinem Gewicht malgenommen ist.`,
    wrong: (of) => `${of.key}: Gewicht ${of.weight} mal Länge ${of.length} ist ${of.given}. Ein anderer Key gibt mehr.`,
    hint: "Ein großes Gewicht auf einem langen Value. Ein Klick auf einen Key zeigt seinen Anteil.",
    right: (of) => `${of.key}: Gewicht ${of.weight} mal Länge ${of.length} ist ${of.given}, mehr als jeder andere.`,
  },
  roles: {
    title: "Wozu drei Matrizen?",
    said: (of) => [
      `Q, K und V entstehen gleich: eine Matrix mal denselben Vektor. Warum bedeuten sie dann Verschiedenes? Weil sie verschieden gebraucht werden: Q auf der einen Seite des Scores, K auf der anderen, V erst nach dem [[softmax|Softmax]]. So zieht das Training jede Matrix anderswohin, auch wenn alle drei gleich beginnen.`,
      `Mit W_Q = W_K wäre Blicken gegenseitig: Der Score zweier Token wäre in beide Richtungen derselbe.`,
      ...(of === null
        ? []
        : [
            `Hier muss das nicht sein. Die Query von ${of.one} und der Key von ${of.other} haben den Kosinus **${of.there}**, umgekehrt ist er **${of.back}**.`,
          ]),
    ],
    ask: (of) =>
      `Wähle in der Tabelle von Queries und Keys ein Paar, dessen zwei Kosinus mindestens **${of.apart}** auseinanderliegen.`,
    wrong: (of) => `${of.one} und ${of.other}: ${of.there} hin, ${of.back} zurück.`,
    hint: "Vergleiche jede Zelle mit ihrem Spiegelbild jenseits der Diagonale und klicke auf eine der beiden.",
    right: (of) =>
      `${of.there} von ${of.one} zu ${of.other}, ${of.back} zurück: Das eine sucht das andere, umgekehrt nicht.`,
  },
  heads: {
    title: "Köpfe",
    said: (of) => [
      of.heads > 1
        ? `Eine Attention kann nach einer Sache suchen. Deshalb hat jede [[layer|Schicht]] ${of.heads} [[head|Köpfe]] nebeneinander, jeder mit eigenen W_Q, W_K und W_V. In diesem Modell sind es zusammen ${of.total}.`
        : `Hier hat jede [[layer|Schicht]] einen [[head|Kopf]], zusammen sind es ${of.total}, jeder mit eigenen W_Q, W_K und W_V.`,
      of.job === null
        ? `Niemand hat ihnen ihre Aufgaben gegeben: Wonach ein Kopf sucht, hat sich im Training ergeben. Was sie finden, wird nebeneinandergelegt und von einer letzten Matrix gemischt, W_O.`
        : `Der Compiler hat jedem seine Aufgabe gegeben. Dieser hier: ${of.job}.`,
    ],
    ask: (of) => `Den Kopf dieser Schicht finden, in dem ${of.query} am meisten auf ${of.key} blickt.`,
    askLayer: (of) => `Die Schicht finden, in der ${of.query} am meisten auf ${of.key} blickt.`,
    wrong: (of) => `In ${of.name} sind es ${of.weight}. Anderswo ist es mehr.`,
    elsewhere: "Das ist eine andere Art von Attention. Gemeint ist die, mit der das Kapitel begann.",
    hint: "Mit [ und ] weitergehen, bei Schichten mit { und }, und die Zeile dieser Query lesen.",
    right: (of) => `In ${of.name}, mit **${of.weight}**.`,
    headName: (of) => `Kopf ${of.head}`,
    layerName: (of) => `Schicht ${of.layer}`,
  },
  cross: {
    title: "Cross-Attention",
    said: (of) => [
      `Der Decoder hat noch eine zweite Art von Attention. Die Queries kommen aus dem, was schon geschrieben ist, Keys und Values aus dem Quelltext. Das ist [[cross|Cross-Attention]].`,
      `Bei ${of.query} blickt das Modell mit **${of.weight}** auf ${of.key}, und als Nächstes schreibt es ${of.writes}.`,
      `Hier treffen sich die beiden Texte: Kein anderer Teil des Decoders sieht die Quelle.`,
    ],
    ask: (of) => `Das Token der Ausgabe auswählen, das am meisten auf ${of.key} blickt.`,
    wrong: (of) => `${of.query} blickt mit ${of.weight} auf ${of.key}. Ein anderes tut es mehr.`,
    hint: "Die Spalte eines Quelltokens zeigt, wer auf es blickt. Gesucht ist ihre dunkelste Zelle.",
    right: (of) => `${of.query} blickt mit **${of.weight}** auf ${of.key}.`,
  },
  residual: {
    title: "Residual und Norm",
    said: (of) => [
      `Attention ersetzt den Vektor eines Tokens nicht, sie addiert etwas dazu. So läuft der Vektor wie ein Strom durch das Modell ([[residual|Residual Stream]]): ${of.adds}-mal kommt unterwegs etwas hinzu.`,
      {
        pre: `Vor jedem Teil bringt eine [[norm|Norm]] die Zahlen auf gleiche Größe; der Strom selbst bleibt, wie er ist.`,
        post: `Nach jeder Addition bringt eine [[norm|Norm]] die Zahlen wieder auf gleiche Größe.`,
        none: `Eine Norm hat dieses Modell nicht: Seine Zahlen stimmen so, wie sie sind.`,
      }[of.norm],
      `Der Vektor von ${of.token} ist am Anfang ${of.start} lang, am Ende ${of.end}.`,
    ],
    ask: "Das Token auswählen, dessen Vektor sich am weitesten von seinem Embedding weggedreht hat: mit dem niedrigsten Kosinus am Ende des Weges.",
    wrong: (of) => `${of.token} endet mit einem Kosinus von ${of.cosine}. Ein anderes endet tiefer.`,
    hint: "Links ein Token anklicken: Sein Feld zeigt den Kosinus nach jeder Schicht, die letzte Zeile ist das Ende.",
    right: (of) => `${of.token} endet bei ${of.cosine}: Seine Umgebung hat verändert, wofür es steht.`,
  },
  feedforward: {
    title: "Feed-Forward",
    said: (of) => [
      `Attention bewegt Information zwischen Token. Das [[feedforward|Feed-Forward-Netz]] verarbeitet sie, für jedes Token allein: ${of.shape}.`,
      `Jede der ${of.units} verborgenen [[unit|Einheiten]] steht für ein Muster und ist groß, wo es vorkommt. Über 0 bei ${of.token}: ${of.active} davon.`,
      ...(of.program
        ? [`In einem kompilierten Programm werden hier die Abbildungen ausgerechnet: aus Zahlen andere Zahlen.`]
        : []),
    ],
    ask: (of) => `Die verborgene Einheit auswählen, die für ${of.token} am weitesten von 0 weg ist.`,
    wrong: (of) => `Einheit ${of.unit} ist ${of.value}. Eine andere ist weiter von 0 weg.`,
    otherToken: (of) => `Das Feld zeigt ein anderes Token. Oben ${of.token} auswählen.`,
    hint: "Im Feld die Zeile hidden öffnen: Dort stehen die größten Einheiten.",
    right: (of) => `Einheit ${of.unit}, mit ${of.value}.`,
  },
  layers: {
    title: "Schichten zusammen",
    said: (of) => [
      `Wie arbeiten gestapelte Schichten zusammen? Über den Strom: Eine Schicht schreibt etwas in den Vektor eines Tokens, eine spätere liest es. Das muss keine Antwort sein, es kann eine Notiz sein, etwa welches Token davor stand, an der die Keys einer anderen Schicht gefunden werden.`,
      `Nach jeder Schicht lässt sich fragen, was das Modell sagen würde, wenn es dort aufhörte. Bei ${of.token} begänne es mit ${of.first} (${of.start}) und endet mit ${of.last} (${of.end}).`,
    ],
    ask: "Wähle ein Token, dessen Antwort sich **zuletzt** entscheidet: Die Spalte „würde sagen“ ändert sich am weitesten unten.",
    wrong: (of) => `Die Antwort bei ${of.token} entscheidet sich früher als eine andere.`,
    hint: "Klicke links auf ein Token: Seine Tafel hat, was das Modell nach jeder Schicht sagen würde.",
    right: (of) =>
      `Bei ${of.token} ändern noch späte Schichten die Antwort: Sie brauchen, was die frühen geschrieben haben.`,
  },
  output: {
    title: "Ausgabe",
    said: (of) => [
      {
        writes: `Am Ende wird jeder Vektor des Decoders mit allen ${of.answers} Token verglichen. Jedes bekommt ein [[logit|Logit]], und Softmax macht daraus eine [[probability|Wahrscheinlichkeit]].`,
        continues: `Am Ende wird jeder Vektor mit allen ${of.answers} Token verglichen. Jedes bekommt ein [[logit|Logit]], und Softmax macht daraus eine [[probability|Wahrscheinlichkeit]]: was als Nächstes kommen kann.`,
        blank: `Am Ende wird der Vektor der Lücke mit allen ${of.answers} Token verglichen. Jedes bekommt ein [[logit|Logit]], und Softmax macht daraus eine [[probability|Wahrscheinlichkeit]].`,
        class: `Am Ende wird ein Vektor für den ganzen Text mit den ${of.answers} möglichen Antworten verglichen. Jede bekommt ein [[logit|Logit]], und Softmax macht daraus eine [[probability|Wahrscheinlichkeit]].`,
        program: `Am Ende wird der Vektor jedes Tokens als eines von ${of.answers} Token gelesen: Das ist die Antwort des Programms an seiner Stelle.`,
      }[of.kind],
      `Hier bekommt ${of.best} **${of.p}**${of.second === null ? "" : `, danach kommt ${of.second}`}.`,
    ],
    ask: "Die Stelle auswählen, an der das Modell am **unsichersten** ist: wo seine erste Wahl die kleinste Wahrscheinlichkeit hat.",
    wrong: (of) => `Nach ${of.token} hat die erste Wahl ${of.p}. Anderswo hat sie weniger.`,
    hint: "Die Wahrscheinlichkeiten stehen rechts im Bild; eine Zeile anklicken.",
    right: (of) => `Nach ${of.token} hat die erste Wahl nur ${of.p}.`,
    askPlace: (of) => `Eine Stelle auswählen, an der das Modell ${of.answer} antwortet.`,
    wrongPlace: (of) => `Hier antwortet es ${of.answer}.`,
    rightPlace: (of) => `${of.answer}, mit ${of.p}.`,
    askHead: (of) =>
      `Welchen Kopf braucht die Antwort ${of.answer} am meisten? Den abschalten ([[ablation|Ablation]]), der sie am meisten kostet.`,
    wrongHead: (of) => `${of.name} ist aus; ein anderer kostet die Antwort mehr.`,
    many: "Nur einen Kopf abschalten, die anderen wieder an.",
    hintHead: "Je länger der Balken unter einem Kopf, desto mehr braucht ihn die Antwort. Den Kopf anklicken.",
    rightHead: (of) => `Ohne ${of.name} fällt die Antwort von ${of.before} auf ${of.after}.`,
  },
  sampling: {
    title: "Ein Token wählen",
    said: (of) => [
      `Die Ausgabe entsteht Token für Token. Was gewählt ist, wird im nächsten Schritt mitgelesen; hier sind es ${of.steps} Schritte.`,
      of.translates
        ? `Immer das Wahrscheinlichste zu nehmen heißt [[greedy]]. Ein [[beam|Beam]] verfolgt mehrere Texte, denn ein schwacher Anfang kann gut enden.`
        : `Immer das Wahrscheinlichste zu nehmen heißt [[greedy]]; nach [[probability|Wahrscheinlichkeit]] auszulosen heißt [[sampling|Sampling]], und die [[temperature|Temperatur]] sagt, wie gewagt.`,
    ],
    ask: "Zu dem Schritt gehen, in dem das gewählte Token die **kleinste** Wahrscheinlichkeit hatte.",
    wrong: (of) => `Schritt ${of.step} nahm ${of.token} mit ${of.p}. Ein anderer war unsicherer.`,
    hint: "Durch die Schritte gehen und die Wahrscheinlichkeit des gewählten Tokens lesen.",
    right: (of) => `Schritt ${of.step}: ${of.token} mit ${of.p}. Hier hätte der Text leicht anders weitergehen können.`,
  },
  film: {
    guess: (of) => `Bevor es gelernt hatte, war das Gewicht, das ${of.query} auf ${of.key} legt, …`,
    choices: ["kleiner als jetzt", "etwa gleich", "größer als jetzt"],
    guessed: (of) => `Damals war es **${of.first}**, jetzt ist es ${of.last}.`,
    title: "Wie es gelernt wurde",
    said: (of) => [
      `Niemand hat diese Gewichte geschrieben. Der Lauf hat sie bei vielen Trainingsschritten aufgehoben, wie die Bilder eines Films; der Regler oben geht durch sie hindurch.`,
      `Bei Schritt ${of.step} blickte ${of.query} mit ${of.first} auf ${of.key}, am Ende mit **${of.last}**.`,
    ],
    ask: (of) =>
      `Geh zurück zu einem Schritt, bei dem ${of.query} mit weniger als **${of.most}** auf ${of.key} blickt.`,
    wrong: (of) => `Bei Schritt ${of.step} sind es ${of.weight}.`,
    hint: "Schiebe den Regler unter dem Namen des Laufs nach links, oder drücke die Komma-Taste.",
    right: (of) => `Bei Schritt ${of.step} sind es ${of.weight}. Dazwischen fand der Kopf seine Aufgabe.`,
  },
  change: {
    title: "Selbst eingreifen",
    guess: (of) =>
      `Angenommen, ${of.query} sieht am meisten auf ${of.key}, nur in diesem Kopf. Die Antwort des Modells …`,
    choices: ["bleibt, wie sie ist", "wird eine andere"],
    guessed: (of) =>
      of.same ? `Sie bleibt. Probiere es aus, und überlege, warum.` : `Sie wird eine andere. Probiere es aus.`,
    said: (of) => [
      `Jetzt ist jeder Teil bekannt. Zeit, einen zu ändern: den Score einer einzigen Zelle.`,
      `${of.query} gibt ${of.key} ein Gewicht von ${of.weight} und blickt am meisten auf ${of.best} (${of.most}). Der Score der beiden ist ${of.score}.`,
    ],
    ask: (of) => `Dafür sorgen, dass ${of.query} am meisten auf ${of.key} blickt.`,
    wrong: (of) => `Das Gewicht ist jetzt ${of.weight}.`,
    hint: (of) => `Für die gewählte Zelle einen höheren Score eintippen und setzen: ${of.score} sollte reichen.`,
    right: (of) =>
      `${of.query} blickt mit **${of.weight}** auf ${of.key}. ` +
      (of.same
        ? `Die Antwort bleibt ${of.answer}: Selten hängt alles an einer Zelle.`
        : `Die Antwort war ${of.before}; jetzt ist sie ${of.answer}.`),
  },
  summary: {
    title: "Der Weg noch einmal",
    said: (of) => [
      `Aus dem Text wurden **${of.tokens} Token**, jedes ein Vektor aus **${of.d} Zahlen**.`,
      `In jeder von **${of.layers} Schichten** fragte jedes Token mit einer Query, wurde an seinem Key gefunden und gab seinen Value. Aus Scores wurden${of.kind === "softmax" ? " durch Softmax" : ""} Gewichte, und die gewichtete Summe der Values kam zu seinem Vektor dazu: **${of.heads} Köpfe** insgesamt.`,
      ...(of.cross ? [`Durch Cross-Attention blickte das Geschriebene auf das Gelesene.`] : []),
      `Schicht für Schicht las, was die davor geschrieben hatten. Am Ende wurde jeder Vektor mit jeder möglichen Antwort verglichen: ${of.answer}.`,
    ],
  },
};
