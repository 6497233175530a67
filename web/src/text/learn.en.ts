/** The chapters of Learn. `[[term|words]]` is a term of the glossary, `**…**` what matters; tokens come marked. */

export const learnEn = {
  title: "Learn",
  about: "A guided path through this model",
  invitation: (count: number) =>
    `New here? ${count} short chapters lead through this model, from the text to its answer, with its own numbers.`,
  start: "Start the path",
  dismiss: "No, thanks",
  close: "Close Learn",
  fold: "Fold the chapter",
  unfold: "Unfold the chapter",
  chapters: "Chapters",
  place: (at: number, count: number) => `Chapter ${at} of ${count}`,
  previous: "Previous",
  next: "Next",
  show: "Show me",
  task: "Your task",
  solved: "Solved",
  hint: "Hint",
  notYet: "Not yet",
  alreadySolved: "Solved before.",
  noTask: "No task in this chapter: this text gives none to solve.",
  loading: "Reading the numbers of this text…",
  failed: (why: string) => `The numbers for this chapter are not to be had: ${why}`,
  finished: "That was the whole way through the model. Every view is yours now; type a text of your own.",
  formula: (lit: string) => `The formula of attention; this chapter is about ${lit}`,
  formulaAlone: "The formula of attention",
  progress: (solved: number) => `solved: ${solved}`,
  handIn: "Hand in",
  handInAbout: "Write your name, and give the line to your teacher. Nothing is sent.",
  name: "Name",
  copy: "Copy",
  guess: "First guess",
  guessedRight: "As you said.",
  guessedWrong: "Otherwise than you said.",
  exercise: {
    puzzle: "Build a program from menus: add a line, and choose. The last line is the answer, tried on every text.",
    goal: "Give words their queries and keys, and values where they are asked for. Every sentence is tried.",
    slip: "One step of this small model is computed wrongly. Point at it, and choose the formula that repairs it.",
    mystery: "What does this model compute, and by which edges? Try it, mark the edges, and write its program.",
    inPython: "This one takes Python: write the answer in a file. The command makes the file and checks it.",
  },
  own: {
    question: "Choose an answer.",
    answer: (of: { answer: string }) => `Right: ${of.answer}.`,
    ask: (of: { answer: string }) => `Change a head, a weight or a score until the model writes **${of.answer}**.`,
    hint: (of: { answer: string }) => `The model writes “${of.answer}”. Nothing is changed yet.`,
    wrong: (of: { answer: string }) => `With your change it writes “${of.answer}”.`,
    right: (of: { answer: string }) => `It writes “${of.answer}” now.`,
  },

  tokens: {
    title: "Tokens",
    said: (of: { list: string; count: number; vocabulary: string; starts: string | null }) => [
      `The model does not read letters. It reads [[token|tokens]], pieces it has a number for: ${of.list}.`,
      `These are ${of.count}, out of a [[vocabulary]] of ${of.vocabulary}. In the picture each has a lane of its own, with its id beside it.`,
      ...(of.starts === null ? [] : [`${of.starts} is a sign that is no text: it only says that a text begins.`]),
    ],
    ask: (of: { id: number }) => `Choose the token with the id **${of.id}**.`,
    wrong: (of: { token: string; id: number }) => `${of.token} has the id ${of.id}.`,
    hint: "The ids stand beside the tokens, at the left of the picture.",
    right: (of: { token: string; id: number }) =>
      `${of.token} is number ${of.id}. For the model it is this number and nothing else.`,
  },
  embedding: {
    title: "Embedding",
    said: (of: { token: string; d: number; one: string; other: string; cosine: string; named: boolean }) => [
      `Each id is looked up in a table: ${of.token} becomes a [[vector]] of ${of.d} numbers, its [[embedding]].`,
      of.named
        ? `Nothing here was learned: the compiler gave each of the ${of.d} numbers a meaning of its own.`
        : `The numbers were learned. What occurs in similar places came to have similar vectors.`,
      ...(of.cosine === ""
        ? []
        : [
            `The table shows how alike two of them are: 1 is the same direction. ${of.one} and ${of.other}: ${of.cosine}.`,
          ]),
    ],
    ask: "In the table of embeddings, choose the two **different** tokens that are most alike.",
    wrong: (of: { one: string; other: string; cosine: string }) =>
      `${of.one} and ${of.other} have ${of.cosine}. Another pair has more.`,
    same: "That is the same token twice: of course it is like itself. Find two different ones.",
    hint: "Look for the highest number outside of the diagonal, and click on it.",
    right: (of: { one: string; other: string; cosine: string }) =>
      `${of.one} and ${of.other}, with ${of.cosine}. Nobody told the model which words are related.`,
    askToken: (of: { token: string }) => `Choose ${of.token} in the panel, and see other numbers.`,
    hintToken: "The list of tokens is at the top of the panel.",
    rightToken: (of: { token: string }) => `These are the numbers that ${of.token} starts with, in every text.`,
  },
  position: {
    title: "Position",
    said: (of: {
      how: "added" | "turned" | "biased";
      kind: string;
      first: string;
      second: string;
      causal: boolean;
    }) => [
      of.causal
        ? `A score compares two tokens, not their places. The mask of this model hides what comes later, so a token knows what stands before it, but not in which order, nor how far away.`
        : `Attention sees a set, not an order: without help, ${of.first} before ${of.second} is the same as ${of.second} before ${of.first}.`,
      {
        added: `So this model adds a vector for the [[position]] to each embedding (${of.kind}). Every place has a pattern of its own.`,
        turned: `So this model turns queries and keys by an angle that grows with the [[position]] (${of.kind}). What counts is how far two tokens are apart.`,
        biased: `So this model adds a number to each score that depends on the distance of the two tokens (${of.kind}).`,
      }[of.how],
    ],
    ask: (of: { token: string }) => `Move the slider to the position of ${of.token}. Positions are counted from 0.`,
    wrong: (of: { at: number; token: string | null }) =>
      of.token === null ? `At position ${of.at} this text has no token.` : `At position ${of.at} stands ${of.token}.`,
    hint: "Count the tokens from the left, and begin with 0.",
    right: (of: { token: string; at: number }) =>
      `${of.token} stands at ${of.at}, and this is the pattern of that place.`,
  },
  vectors: {
    title: "Query, key, value",
    said: (of: { query: string; d: number; dHead: number; shared: boolean; learned: boolean }) => [
      `From its vector every token makes three shorter ones. The [[query]] says what it looks for, the [[key]] what it can be found by, the [[value]] what it hands over.`,
      `Three matrices do it, ${of.learned ? "learned in training" : "written by the compiler"}: W_Q, W_K and W_V. Each makes ${of.dHead} numbers out of ${of.d}.`,
      `Here ${of.query} asks, and every token it meets shows its key.`,
      ...(of.shared ? [`In this layer several heads share their keys and values.`] : []),
    ],
    ask: (of: { query: string; key: string }) =>
      `Now the other way round: let ${of.query} be the query, and choose ${of.key} as the key.`,
    hintQuery: (of: { query: string }) => `First choose ${of.query} as the query, above the picture.`,
    hintKey: (of: { key: string }) => `Good. Now click on ${of.key} in the picture.`,
    right: (of: { query: string; key: string }) =>
      `Each token plays both parts: ${of.query} asks with its query and is found by its key.`,
  },
  score: {
    title: "Score",
    said: (of: {
      query: string;
      key: string;
      best: string;
      score: string;
      d: number;
      formula: string;
      dot: boolean;
    }) => [
      of.dot
        ? `How well does a key answer a query? Multiply the two number by number and add up: their [[dot|dot product]], of ${of.d} products here.`
        : `How well does a key answer a query? Here the [[score]] is ${of.formula}.`,
      `${of.query} with ${of.key} gives **${of.score}**. If two vectors point the same way the score is high; if they point apart it is negative.`,
    ],
    ask: (of: { query: string; masks: boolean }) =>
      `Choose the key that answers ${of.query} best: the highest score${of.masks ? " of those it may look at" : ""}.`,
    wrong: (of: { key: string; score: string }) => `${of.key} has ${of.score}. There is a higher one.`,
    blocked: (of: { key: string }) => `${of.key} is hidden from this query. Find the best of the others.`,
    hint: "The numbers stand on the arrows. Click on a key to see how its score comes about.",
    right: (of: { query: string; key: string; score: string }) => `${of.query} with ${of.key}: ${of.score}.`,
  },
  scale: {
    title: "Scale",
    guess: (of: { query: string; now: string }) =>
      `The largest weight of ${of.query} is ${of.now}. If the [[temperature]] is halved, it …`,
    choices: ["grows", "stays", "shrinks"],
    guessed: (of: { now: string; then: string }) => `From ${of.now} it goes to **${of.then}**.`,
    said: (of: {
      query: string;
      score: string;
      scaled: string;
      d: number;
      root: string | null;
      scale: string;
      reason: string;
      now: string;
      without: string | null;
    }) => [
      of.root === null
        ? `Each score is multiplied by ${of.scale}${of.reason === "" ? "" : `: ${of.reason}`}. So ${of.score} becomes **${of.scaled}**.`
        : `A sum of ${of.d} products grows with their number. So each score is divided by √${of.d} = ${of.root}: ${of.score} becomes **${of.scaled}**.`,
      ...(of.without === null
        ? []
        : [
            `Without this, the largest weight of ${of.query} would be ${of.without} instead of ${of.now}. A head that is too sure stops learning.`,
          ]),
    ],
    askSharp: (of: { query: string; most: string }) =>
      `Turn it back: move the [[temperature]] down until the largest weight of ${of.query} is at least **${of.most}**.`,
    askEven: (of: { query: string; most: string }) =>
      `Move the [[temperature]] up until the largest weight of ${of.query} is at most **${of.most}**.`,
    wrong: (of: { weight: string }) => `The largest weight is ${of.weight}.`,
    hint: "The slider is below the maps, beside the cell. The temperature divides the scores once more.",
    right: (of: { weight: string }) => `Now it is ${of.weight}. The scores are the same; only the scale has changed.`,
    ask: (of: { query: string }) => `Choose the key with the lowest scaled score for ${of.query}.`,
    wrongKey: (of: { key: string; scaled: string }) => `${of.key} has ${of.scaled}. There is a lower one.`,
    hintKey: "Click on a key in the picture.",
    rightKey: (of: { key: string; scaled: string }) => `${of.key}, with ${of.scaled}.`,
  },
  mask: {
    title: "Mask",
    said: (of: { causal: boolean; writes: boolean; hidden: string; total: number; first: string; blocked: string }) => [
      of.causal
        ? of.writes
          ? `The model writes from left to right. In training it is given the whole answer at once, so what comes later must be hidden, or it would just copy.`
          : `The model is to say what comes next. So a token must not see what comes after it, or there would be nothing to guess.`
        : `Not every query may look at every key here.`,
      `The [[mask]] puts ${of.blocked} in place of the scores that are not allowed; their weight becomes 0. They are the hatched cells: ${of.hidden} of ${of.total}.`,
      ...(of.causal ? [`${of.first} is first, so it can see nobody but itself.`] : []),
    ],
    ask: (of: { count: number }) =>
      `Choose a query that may look at exactly **${of.count}** ${of.count === 1 ? "key" : "keys"}.`,
    wrong: (of: { query: string; count: number }) =>
      `${of.query} may look at ${of.count} ${of.count === 1 ? "key" : "keys"}.`,
    hint: "Rows are queries. Count the cells of a row that are not hatched, and click on the row.",
    right: (of: { query: string; count: number }) => `${of.query} sees ${of.count} and no more.`,
  },
  softmax: {
    titles: { softmax: "Softmax", argmax: "All on the best", kernelized: "Shares of the row", rows: "Weights" },
    said: (of: {
      kind: "softmax" | "argmax" | "kernelized" | "rows";
      rule: string;
      query: string;
      key: string;
      masked: string;
      exponential: string;
      total: string;
      weight: string;
      ties: number;
      second: { key: string; power: string; exponential: string; weight: string; close: boolean } | null;
    }) =>
      ({
        softmax: [
          `Scores become shares of one whole. [[softmax|Softmax]] takes e to the power of each score and divides by the sum: all positive, together 1.`,
          of.second === null
            ? `${of.query} can look at ${of.key} alone, so it gets **${of.weight}**.`
            : `The row's highest score is taken off first: ${of.masked}, at ${of.key}. So ${of.second.key} counts e^(${of.second.power}) = ${of.second.exponential}, and all together count ${of.total}.`,
          ...(of.second === null
            ? []
            : [
                `${of.query} looks at ${of.key} with **${of.weight}** and at ${of.second.key} with **${of.second.weight}**. ${of.second.close ? "Scores that are close share the weight." : "A small lead in score becomes a large lead in weight."}`,
              ]),
        ],
        argmax: [
          `This model has no softmax here: it puts all its weight on the best key ([[argmax]]).`,
          of.ties > 1
            ? `For ${of.query} ${of.ties} keys share the highest score, ${of.masked}; ${of.key} gets **${of.weight}**.`
            : `For ${of.query} the highest score is ${of.masked}, at ${of.key}: it gets **${of.weight}**, the others nothing.`,
          `Softmax comes near to this when its scores are far apart.`,
        ],
        kernelized: [
          `This model has no softmax here. The scores are made so that none is negative, and each is divided by the sum of its row.`,
          `For ${of.query} and ${of.key}: ${of.exponential} of ${of.total} is **${of.weight}**.`,
        ],
        rows: [
          `Here the scores become weights in a way of its own: ${of.rule}.`,
          `${of.query} looks at ${of.key} with **${of.weight}**.`,
        ],
      })[of.kind],
    ask: (of: { key: string }) => `Choose a query whose largest weight is on ${of.key}.`,
    wrong: (of: { query: string; key: string; weight: string }) =>
      `${of.query} looks most at ${of.key}, with ${of.weight}.`,
    hint: "Try the queries one after another; the thickest arrow shows the largest weight.",
    right: (of: { query: string; key: string; weight: string }) =>
      `${of.query} looks at ${of.key} with **${of.weight}**.`,
  },
  sum: {
    title: "Weighted sum",
    said: (of: { query: string; key: string; weight: string; d: number; rest: string | null }) => [
      `The weights say how much; the [[value|values]] say what. Each value is multiplied by its weight, and all are added up.`,
      `${of.query} takes **${of.weight}** of the value of ${of.key}${of.rest === null ? "" : `, and ${of.rest} of all the others`}. The ${of.d} numbers that come out are its [[context]] vector.`,
      `A long value counts more than a short one, even at the same weight.`,
    ],
    ask: (of: { query: string }) =>
      `Choose the key that gives ${of.query} most: the longest vector after the value is multiplied by its weight.`,
    wrong: (of: { key: string; weight: string; length: string; given: string }) =>
      `${of.key}: weight ${of.weight} times length ${of.length} is ${of.given}. Another key gives more.`,
    hint: "A large weight on a long value. Click on a key to see its share.",
    right: (of: { key: string; weight: string; length: string; given: string }) =>
      `${of.key}: weight ${of.weight} times length ${of.length} is ${of.given}, more than any other.`,
  },
  roles: {
    title: "Why three matrices?",
    said: (of: { one: string; other: string; there: string; back: string } | null) => [
      `Q, K and V are made alike, each by a matrix times the same vector. Why do they come to mean different things? Because they are used differently: Q on one side of the score, K on the other, V only after the [[softmax]]. So training pulls each matrix another way, even if all three begin equal.`,
      `With W_Q = W_K looking would be mutual: the score of two tokens would be the same both ways.`,
      ...(of === null
        ? []
        : [
            `Here it need not be. The query of ${of.one} and the key of ${of.other} have a cosine of **${of.there}**; the other way round it is **${of.back}**.`,
          ]),
    ],
    ask: (of: { apart: string }) =>
      `In the table of queries and keys, choose a pair whose two cosines are at least **${of.apart}** apart.`,
    wrong: (of: { one: string; other: string; there: string; back: string }) =>
      `${of.one} and ${of.other}: ${of.there} one way, ${of.back} the other.`,
    hint: "Compare each cell with its mirror image on the other side of the diagonal, and click on one of the two.",
    right: (of: { one: string; other: string; there: string; back: string }) =>
      `${of.there} from ${of.one} to ${of.other}, ${of.back} back: one of them looks for the other, and not the other way round.`,
  },
  heads: {
    title: "Heads",
    said: (of: { heads: number; layers: number; total: number; query: string; key: string; job: string | null }) => [
      of.heads > 1
        ? `One attention can look for one thing. So each [[layer]] has ${of.heads} [[head|heads]] side by side, each with its own W_Q, W_K and W_V. In this model there are ${of.total} in all.`
        : `Here each [[layer]] has one [[head]], and there are ${of.total} in all, each with its own W_Q, W_K and W_V.`,
      of.job === null
        ? `Nobody gave them their jobs: what a head looks for came out of training. What they find is put side by side and mixed by a last matrix, W_O.`
        : `The compiler gave each its job. This one does: ${of.job}.`,
    ],
    ask: (of: { query: string; key: string }) =>
      `Find the head of this layer in which ${of.query} looks most at ${of.key}.`,
    askLayer: (of: { query: string; key: string }) => `Find the layer in which ${of.query} looks most at ${of.key}.`,
    wrong: (of: { name: string; weight: string }) => `In ${of.name} it is ${of.weight}. Another one has more.`,
    elsewhere: "That is another kind of attention. Stay with the one this chapter began with.",
    hint: "Step through them with [ and ], or { and } for layers, and read the row of that query.",
    right: (of: { name: string; weight: string }) => `${of.name}, with **${of.weight}**.`,
    headName: (of: { head: number }) => `head ${of.head}`,
    layerName: (of: { layer: number }) => `layer ${of.layer}`,
  },
  cross: {
    title: "Cross-attention",
    said: (of: { query: string; key: string; weight: string; writes: string }) => [
      `The decoder has a second kind of attention. Its queries come from what is written so far; keys and values come from the source text. That is [[cross|cross-attention]].`,
      `At ${of.query} the model looks at ${of.key} with **${of.weight}**, and the next token it writes is ${of.writes}.`,
      `Here the two texts meet: no other part of the decoder sees the source.`,
    ],
    ask: (of: { key: string }) => `Choose the token of the output that looks most at ${of.key}.`,
    wrong: (of: { query: string; key: string; weight: string }) =>
      `${of.query} looks at ${of.key} with ${of.weight}. Another looks at it more.`,
    hint: "The column of a source token shows who looks at it. Find its darkest cell.",
    right: (of: { query: string; key: string; weight: string }) =>
      `${of.query} looks at ${of.key} with **${of.weight}**.`,
  },
  residual: {
    title: "Residual and norm",
    said: (of: {
      norm: "pre" | "post" | "none";
      layers: number;
      adds: number;
      token: string;
      start: string;
      end: string;
    }) => [
      `Attention does not replace a token's vector, it adds to it. So the vector runs through the model like a stream ([[residual]]): ${of.adds} times something is added on the way.`,
      {
        pre: `Before each part, a [[norm]] brings the numbers to a common size; the stream itself stays as it is.`,
        post: `After each addition, a [[norm]] brings the numbers back to a common size.`,
        none: `This model has no norm: its numbers are exact as they are.`,
      }[of.norm],
      `The vector of ${of.token} is ${of.start} long at the start and ${of.end} at the end.`,
    ],
    ask: "Choose the token whose vector has turned furthest away from its embedding: the lowest cosine at the end of its way.",
    wrong: (of: { token: string; cosine: string }) =>
      `${of.token} ends with a cosine of ${of.cosine}. Another ends lower.`,
    hint: "Click on a token at the left: its panel has the cosine after every layer, the last line is the end.",
    right: (of: { token: string; cosine: string }) =>
      `${of.token} ends at ${of.cosine}: its surroundings have changed what it stands for.`,
  },
  feedforward: {
    title: "Feed-forward",
    said: (of: {
      token: string;
      shape: string;
      units: number;
      active: number;
      unit: number;
      value: string;
      program: boolean;
    }) => [
      `Attention moves information between tokens. The [[feedforward|feed-forward]] network works on it, for each token by itself: ${of.shape}.`,
      `Each of the ${of.units} hidden [[unit|units]] stands for a pattern and is large where it is found. Above 0 for ${of.token}: ${of.active} of them.`,
      ...(of.program
        ? [`In a compiled program this is where the maps are worked out: from numbers to other numbers.`]
        : []),
    ],
    ask: (of: { token: string }) => `Choose the hidden unit that is furthest from 0 for ${of.token}.`,
    wrong: (of: { unit: number; value: string }) => `Unit ${of.unit} is ${of.value}. Another is further from 0.`,
    otherToken: (of: { token: string }) => `The panel shows another token. Choose ${of.token} at its top.`,
    hint: "Open the line hidden in the panel: its largest units are listed there.",
    right: (of: { unit: number; value: string }) => `Unit ${of.unit}, with ${of.value}.`,
  },
  layers: {
    title: "Layers together",
    said: (of: { token: string; first: string; start: string; last: string; end: string }) => [
      `How do stacked layers work together? Through the stream: one layer writes something into a token's vector, and a later one reads it. What is written need not be an answer; it may be a note, such as which token came before, that another layer's keys are found by.`,
      `One can ask after every layer what the model would say if it stopped there. At ${of.token} it would begin with ${of.first} (${of.start}) and ends with ${of.last} (${of.end}).`,
    ],
    ask: "Choose a token whose answer is settled **last**: the column “would say” changes furthest down.",
    wrong: (of: { token: string }) => `The answer at ${of.token} is settled earlier than another.`,
    hint: "Click on a token at the left: its panel has what the model would say after each layer.",
    right: (of: { token: string }) =>
      `At ${of.token} even the late layers still change the answer: they need what the early ones wrote.`,
  },
  output: {
    title: "Output",
    said: (of: {
      kind: "writes" | "continues" | "blank" | "class" | "program";
      answers: string;
      best: string;
      p: string;
      second: string | null;
      places: number;
    }) => [
      {
        writes: `At the end each vector of the decoder is compared with all ${of.answers} tokens. That gives a [[logit]] for each, and softmax makes a [[probability]] of it.`,
        continues: `At the end each vector is compared with all ${of.answers} tokens. That gives a [[logit]] for each, and softmax makes a [[probability]] of it: what may come next.`,
        blank: `At the end the vector of the blank is compared with all ${of.answers} tokens. Each gets a [[logit]], and softmax makes a [[probability]] of it.`,
        class: `At the end one vector for the whole text is compared with the ${of.answers} answers there are. Each gets a [[logit]], and softmax makes a [[probability]] of it.`,
        program: `At the end each token's vector is read as one of ${of.answers} tokens: that is the program's answer at its place.`,
      }[of.kind],
      `Here ${of.best} gets **${of.p}**${of.second === null ? "" : `, then comes ${of.second}`}.`,
    ],
    ask: "Choose the place where the model is **least sure**: where its first choice has the lowest probability.",
    wrong: (of: { token: string; p: string }) =>
      `After ${of.token} the first choice has ${of.p}. Elsewhere it has less.`,
    hint: "The probabilities stand at the right of the picture; click on a row.",
    right: (of: { token: string; p: string }) => `After ${of.token} its first choice has no more than ${of.p}.`,
    askPlace: (of: { answer: string }) => `Choose a place where the model answers ${of.answer}.`,
    wrongPlace: (of: { answer: string }) => `Here it answers ${of.answer}.`,
    rightPlace: (of: { answer: string; p: string }) => `${of.answer}, with ${of.p}.`,
    askHead: (of: { answer: string }) =>
      `Which head does the answer ${of.answer} need most? Switch off ([[ablation|ablate]]) the one that costs it most.`,
    wrongHead: (of: { name: string }) => `${of.name} is off; another one costs the answer more.`,
    many: "Switch off one head alone: the others on again.",
    hintHead: "The longer the bar below a head, the more the answer needs it. Press the head.",
    rightHead: (of: { name: string; before: string; after: string }) =>
      `Without ${of.name} the answer falls from ${of.before} to ${of.after}.`,
  },
  sampling: {
    title: "Choosing a token",
    said: (of: { steps: number; text: string; translates: boolean }) => [
      `The output comes one token at a time. Whatever is chosen is read again at the next step, ${of.steps} steps here.`,
      of.translates
        ? `Taking the likeliest each time is called [[greedy]]. A [[beam]] keeps several texts going, as a poor start may end well.`
        : `Taking the likeliest each time is called [[greedy]]; drawing by [[probability]] is called [[sampling]], and the [[temperature]] says how daring it is.`,
    ],
    ask: "Go to the step at which the token that was taken had the **lowest** probability.",
    wrong: (of: { step: number; token: string; p: string }) =>
      `Step ${of.step} took ${of.token} with ${of.p}. Another step was less sure.`,
    hint: "Move through the steps and read the probability of the token taken.",
    right: (of: { step: number; token: string; p: string }) =>
      `Step ${of.step}: ${of.token} with ${of.p}. Here the text could easily have gone elsewhere.`,
  },
  film: {
    guess: (of: { query: string; key: string }) =>
      `Before it had learned, the weight that ${of.query} gives to ${of.key} was …`,
    choices: ["lower than now", "about the same", "higher than now"],
    guessed: (of: { first: string; last: string }) => `It was **${of.first}** then, and is ${of.last} now.`,
    title: "How it was learned",
    said: (of: { query: string; key: string; first: string; last: string; step: string }) => [
      `Nobody wrote these weights. The run kept its weights at many steps of training, like the frames of a film, and the slider at the top goes through them.`,
      `At step ${of.step}, ${of.query} looked at ${of.key} with ${of.first}; at the end with **${of.last}**.`,
    ],
    ask: (of: { query: string; key: string; most: string }) =>
      `Go back to a step at which ${of.query} looks at ${of.key} with less than **${of.most}**.`,
    wrong: (of: { step: string; weight: string }) => `At step ${of.step} it is ${of.weight}.`,
    hint: "Move the slider under the run's name to the left, or press the comma key.",
    right: (of: { step: string; weight: string }) =>
      `At step ${of.step} it is ${of.weight}. In between the head found its job.`,
  },
  change: {
    title: "Your turn",
    guess: (of: { query: string; key: string }) =>
      `Suppose ${of.query} looks most at ${of.key}, in this head alone. The model's answer …`,
    choices: ["stays as it is", "becomes another"],
    guessed: (of: { same: boolean }): string =>
      of.same ? `It stays. Try it, and think about why.` : `It becomes another. Try it.`,
    said: (of: { query: string; key: string; weight: string; best: string; most: string; score: string }) => [
      `You know every part now. So change one: the score of a single cell.`,
      `${of.query} gives ${of.key} a weight of ${of.weight}, and looks most at ${of.best} (${of.most}). Their score is ${of.score}.`,
    ],
    ask: (of: { query: string; key: string }) => `Make ${of.query} look most at ${of.key}.`,
    wrong: (of: { weight: string }) => `The weight is ${of.weight} now.`,
    hint: (of: { score: string }) =>
      `Type a higher score for the chosen cell and set it: ${of.score} should be enough.`,
    right: (of: { query: string; key: string; weight: string; answer: string; before: string; same: boolean }) =>
      `${of.query} looks at ${of.key} with **${of.weight}**. ` +
      (of.same
        ? `The answer stays ${of.answer}: one cell is seldom all that holds it.`
        : `The answer was ${of.before}; now it is ${of.answer}.`),
  },
  summary: {
    title: "The way once more",
    said: (of: {
      tokens: number;
      d: number;
      layers: number;
      heads: number;
      kind: "softmax" | "argmax" | "kernelized" | "rows";
      cross: boolean;
      answer: string;
    }) => [
      `The text became **${of.tokens} tokens**, each a vector of **${of.d} numbers**.`,
      `In each of **${of.layers} layers** every token asked with a query, was found by its key and gave its value. Scores became weights${of.kind === "softmax" ? " by softmax" : ""}, and the weighted sum of the values was added to its vector: **${of.heads} heads** in all.`,
      ...(of.cross ? [`By cross-attention what is written looked at what was read.`] : []),
      `Layer after layer read what the ones before had written. At the end each vector was compared with every answer there is: ${of.answer}.`,
    ],
  },
};

export type LearnText = typeof learnEn;
