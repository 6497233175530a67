/** What the server says, in German: each phrase by its English text. `{}` stands for whatever is there, which stays: at
 * the beginning for one word, elsewhere for any text.
 *
 * A part of the user's own has words of its own and is not among them; nor are most error messages. */

export const server: Record<string, string> = {
  // Names of parts.
  "scaled dot product": "skaliertes Skalarprodukt",
  "dot product": "Skalarprodukt",
  "capped dot product": "begrenztes Skalarprodukt",
  "cosine similarity": "Kosinus-Ähnlichkeit",
  "additive similarity": "additive Ähnlichkeit",
  "product of features φ(q)·φ(k)": "Produkt der Merkmale φ(q)·φ(k)",
  "log feature dot": "Produkt der Merkmale φ(q)·φ(k), als Logarithmus",
  "kernelized (linear) attention": "kernelisierte (lineare) Attention",
  "no positions": "keine Positionen",
  "rotary positions": "Rotary-Positionen",
  "ALiBi bias": "ALiBi-Bias",
  "T5 bias": "T5-Bias",
  "no mask": "keine Maske",
  "causal mask": "kausale Maske",
  "padding mask": "Padding-Maske",
  "window mask": "Fenster-Maske",
  "prefix mask": "Präfix-Maske",
  "document mask": "Dokument-Maske",
  "scattered documents mask": "Maske verstreuter Dokumente",
  "cross documents mask": "Dokument-Maske der Cross-Attention",
  "function mask": "Maske aus einer Funktion",
  "tensor mask": "Maske aus einem Tensor",
  // The sequence diagram.
  "1  Inputs: the query (q), key (k) and value (v) of each token":
    "1  Eingaben: Query (q), Key (k) und Value (v) jedes Tokens",
  "1  Inputs: query, keys and values": "1  Eingaben: Query, Keys und Values",
  "2  Scores: each query meets each key, score = {}": "2  Scores: jede Query trifft jeden Key, Score = {}",
  "3  Weights: {} of score × {} + bias, for “{}”": "3  Gewichte: {} von Score × {} + Bias, für „{}“",
  "3  Weights: {} of score × {}, for “{}”": "3  Gewichte: {} von Score × {}, für „{}“",
  "3  Weights: {} of score × {} + bias": "3  Gewichte: {} von Score × {} + Bias",
  "3  Weights: {} of score × {}": "3  Gewichte: {} von Score × {}",
  "4  Output": "4  Ausgabe",
  "Weighted Sum": "gewichtete Summe",
  "Followed: {}.": "Verfolgt: {}.",
  "One head set by hand: nouns ask for adjectives. Followed: {}.":
    "Ein Kopf, von Hand gesetzt: Nomen fragen nach Adjektiven. Verfolgt: {}.",
  "Attention as a sequence: {}": "Attention als Ablauf: {}",
  "{}, head {}": "{}, Kopf {}",
  "{} masked": "{} maskiert",
  "{} more": "{} weitere",
  "× {} in all": "× {} gesamt",
  "… {} in all": "… von {}",
  "bias {}: × {}": "Bias {}: × {}",
  "Σ weight": "Σ Gewicht",
  "× value": "× Value",
  // What they compute.
  "a score of the pair": "ein Score des Paares",
  "the factor of this similarity": "der Faktor dieser Ähnlichkeit",
  "1 ÷ the temperature of this head": "1 ÷ die Temperatur dieses Kopfes",
  "All the weight of a row on its best key, the first of them if several tie":
    "Alles Gewicht einer Zeile auf ihrem besten Key, bei Gleichstand auf dem ersten",
  "All the weight of a row on its best key, the last of them if several tie":
    "Alles Gewicht einer Zeile auf ihrem besten Key, bei Gleichstand auf dem letzten",
  "All the weight of a row on its best keys, in equal parts if several tie":
    "Alles Gewicht einer Zeile auf ihren besten Keys, bei Gleichstand zu gleichen Teilen",
  "weight = φ(q)·φ(k), over the row's sum unless normalised=False":
    "Gewicht = φ(q)·φ(k), durch die Summe der Zeile, außer mit normalised=False",
  "max(score - τ, 0), with τ such that the row sums to one": "max(score - τ, 0), mit τ so, dass die Zeile 1 ergibt",
  // Values of the boxes.
  "query · key, or what the similarity has in its place": "query · key, oder was die Ähnlichkeit an dessen Stelle hat",
  "scaled, plus the position's bias; {} where the query may not attend":
    "scaled, plus der Bias der Position; {}, wo die Query nicht hinsehen darf",
  "what the weighting makes of the masked row": "was die Gewichtung aus der maskierten Zeile macht",
  "the sum of weight · value over the keys": "die Summe von weight · value über die Keys",
  "the contexts of all heads, side by side": "die Contexts aller Köpfe nebeneinander",
  "concat itself: there is no W_O": "concat selbst: es gibt kein W_O",
  "row of the table": "Zeile der Tabelle",
  "row of the table × √{}": "Zeile der Tabelle × √{}",
  "row of the table of segments": "Zeile der Tabelle der Segmente",
  "{} position": "Position: {}",
  "{} of the memory": "{} des Gedächtnisses",
  "{}, turned by its position": "{}, um seine Position gedreht",
  "{}, normalised in each head": "{}, in jedem Kopf normiert",
  "softmax of the logits": "Softmax der Logits",
  "the mean of x": "das Mittel von x",
  "the mean of x²": "das Mittel von x²",
  "the mean of (x − mean)²": "das Mittel von (x − mean)²",
  learned: "gelernt",
  "1 + what is learned": "1 + was gelernt ist",
  "of the first token": "des ersten Tokens",
  "of the last token": "des letzten Tokens",
  "the mean over the tokens": "das Mittel über die Tokens",
  "linear in the n-grams of the tokens": "linear in den N-Grammen der Tokens",
  // Notes on a trace, and why something ran or is not there.
  "the target is its own greedy output": "das Ziel ist seine eigene Greedy-Ausgabe",
  "the target is its own greedy output, as changed":
    "das Ziel ist seine eigene Greedy-Ausgabe, so wie sie geändert ist",
  "written with a cache, token by token": "mit einem Cache geschrieben, Token für Token",
  "never met in training, and read as unknown: {}": "im Training nie vorgekommen und als unbekannt gelesen: {}",
  "{} ran the reference: {}": "{} lief mit der Referenz: {}",
  "an edit changes {}, which only the reference computes": "eine Änderung ändert {}, was nur die Referenz berechnet",
  "the program {} answers each token with something that is no token itself, so no text is continued with its answers":
    "das Programm {} beantwortet jedes Token mit etwas, das selbst kein Token ist; so wird mit seinen Antworten kein Text fortgesetzt",
  "this run answers in one step ({}): there is no decoding to see. Runs that translate or generate have one":
    "dieser Lauf antwortet in einem Schritt ({}): es gibt kein Decoding zu sehen. Läufe, die übersetzen oder fortsetzen, haben eines",
  "this run was imported: it was trained elsewhere, so its curves and earlier checkpoints are not here":
    "dieser Lauf wurde importiert: Er wurde anderswo trainiert, seine Kurven und früheren Checkpoints sind nicht hier",
  "this run was compiled from a program, not trained, so it has no curves and no earlier checkpoints":
    "dieser Lauf wurde aus einem Programm kompiliert und nicht trainiert; so hat er keine Kurven und keine früheren Checkpoints",
  "its feed-forward is a part of your own that names no step `hidden` from which a linear map makes `out`":
    "sein Feed-Forward ist ein eigener Baustein, der keinen Schritt `hidden` nennt, aus dem eine lineare Abbildung `out` macht",
  "its layers have attention only, and no feed-forward": "seine Schichten haben nur Attention und kein Feed-Forward",
  "the output reads the decoder, and this is the encoder": "die Ausgabe liest den Decoder, und dies ist der Encoder",
  "the output does not give every token its own logits": "die Ausgabe gibt nicht jedem Token eigene Logits",
  // Positions.
  Sinusoidal: "Sinusförmig",
  Learned: "Gelernt",
  Compiled: "Kompiliert",
  sinusoidal: "sinusförmig",
  compiled: "kompiliert",
  "Every position has its own pattern of sines and cosines, added to the embedding. Fast waves tell neighbours apart, slow ones near from far.":
    "Jede Position hat ihr eigenes Muster aus Sinus und Kosinus, das zum Embedding addiert wird. Schnelle Wellen unterscheiden Nachbarn, langsame nah von fern.",
  "Every position has a vector of its own, learned like a word’s. Past the longest text of training there is none.":
    "Jede Position hat einen eigenen Vektor, gelernt wie der eines Wortes. Jenseits des längsten Textes im Training gibt es keinen.",
  "Every position has a vector that the compiler wrote: a direction of the residual stream stands for each position, and nothing was learned. Past the longest text the program was compiled for there is none.":
    "Jede Position hat einen Vektor, den der Compiler schrieb: Für jede steht eine Richtung des Residual-Streams, und nichts wurde gelernt. Jenseits des längsten Textes, für den das Programm kompiliert wurde, gibt es keinen.",
  "Nothing is added: query and key are turned, pair by pair, the further the later they stand. Their dot product then knows only how far apart they are.":
    "Nichts wird addiert: Query und Key werden Paar für Paar gedreht, umso weiter, je später sie stehen. Ihr Skalarprodukt weiß dann nur, wie weit sie auseinander sind.",
  "Computed, not learned. This run adds it to its embeddings.":
    "Berechnet, nicht gelernt. Dieser Lauf addiert es zu seinen Embeddings.",
  "Computed, not learned. This run does without it.": "Berechnet, nicht gelernt. Dieser Lauf kommt ohne aus.",
  "This run has learned no positions, so there is no table to show: train one whose embedding has Learned.":
    "Dieser Lauf hat keine Positionen gelernt; so gibt es keine Tabelle zu zeigen: Trainiere einen, dessen Embedding Learned hat.",
  "The vectors this run has learned, one for each position.":
    "Die Vektoren, die dieser Lauf gelernt hat, einer für jede Position.",
  "The vectors this run has learned, one for each position. It has {} positions.":
    "Die Vektoren, die dieser Lauf gelernt hat, einer für jede Position. Er hat {} Positionen.",
  "Written by the compiler.": "Vom Compiler geschrieben.",
  "Written by the compiler. It has {} positions.": "Vom Compiler geschrieben. Es sind {} Positionen.",
  "Written by the compiler, then trained for {} steps.": "Vom Compiler geschrieben, dann {} Schritte trainiert.",
  "Written by the compiler, then trained for {} steps. It has {} positions.":
    "Vom Compiler geschrieben, dann {} Schritte trainiert. Es sind {} Positionen.",
  "This run turns its queries and keys by it.": "Dieser Lauf dreht damit seine Queries und Keys.",
  "This run does without it.": "Dieser Lauf kommt ohne aus.",
  // The errors that a reader comes upon.
  "The server does not answer. Start it again with: clearhead look RUN":
    "Der Server antwortet nicht. Starte ihn neu mit: clearhead look RUN",
  "The server answered {} and gave no reason.": "Der Server antwortete {} und nannte keinen Grund.",
  "there is no text to trace: expected one; came a blank one": "es gibt keinen Text zu verfolgen: Er ist leer",
  "the text has {} tokens, and the model was trained to read {}; shorten it":
    "der Text hat {} Tokens, und das Modell lernte {} zu lesen; kürze ihn",
  "the source has {} tokens, and the model reads {}; shorten it":
    "die Quelle hat {} Tokens, und das Modell liest {}; kürze sie",
  "the target has {} tokens, and the model reads {}; shorten it":
    "das Ziel hat {} Tokens, und das Modell liest {}; kürze es",
  "the text fills the {} tokens that the model reads; shorten it to go on from it":
    "der Text füllt die {} Tokens, die das Modell liest; kürze ihn, um ihn fortzusetzen",
  "there is no word to follow: write one that stands in every text":
    "es gibt kein Wort zu verfolgen: Schreibe eines, das in jedem Text steht",
  "this run's tokenizer has no token for {}, so it cannot be followed; take another":
    "der Tokenizer dieses Laufs hat kein Token für {}, es kann nicht verfolgt werden; nimm ein anderes Wort",
  "the word {} does not stand in {}; write it in every text":
    "das Wort {} steht nicht in {}; schreibe es in jeden Text",
};
