/** The frame around the views: the rail, the top, the place line, the text form and the keys. */

export const pageEn = {
  views: "Views",
  groups: { see: "See", understand: "Understand", use: "Use", change: "Change" },
  options: "Target, examples, training steps",
  theme: "Light or dark",
  projector: "Projector: large letters, nothing but the picture",
  leaveProjector: "Leave the projector (Esc)",
  keys: "Keys",
  close: "Close",
  language: "Language",
  top: "The run and the text",
  compiled: (name: string) => `compiled from the program ${name}`,
  imported: "imported",
  training: "training",
  parameters: (count: string) => `${count} parameters`,
  becomes: "becomes",
  python: "Copy as Python",
  pythonAbout: "Copy the few lines of Python that give the numbers of this view",
  absent: (why: string) => `There is nothing to show in this view: ${why}.`,
  toModel: "Go to the model",
  loading: "Loading",

  where: "Where you are",
  allHeads: "All heads",
  goTo: "Go to",

  looked: "The text that is looked at",
  fields: { source: "source", text: "text", target: "target" } as Record<string, string>,
  ownAnswer: "its own",
  look: "Look",
  enter: "Enter submits, Shift Enter breaks the line",
  examples: "Examples",

  help: [
    {
      where: "Everywhere",
      keys: [
        [["1", "…", "9", "0"], "go to a view"],
        [["/"], "type another text"],
        [["g"], "go to a head, as L12H3"],
        [["[", "]"], "the head before, the next"],
        [["{", "}"], "the layer before, the next"],
        [["l"], "Learn: the guided path"],
        [["n", "p"], "in Learn: the next chapter, the one before"],
        [["f"], "projector: large letters, nothing but the picture"],
        [["t"], "light or dark"],
        [[",", "."], "the step of training before, the next"],
        [["?"], "this help"],
        [["Esc"], "close what lies on top, leave the projector"],
      ],
    },
    {
      where: "On a heat map",
      keys: [
        [["←", "↑", "↓", "→"], "move the cell that is read; the map follows"],
        [["Shift", "arrows"], "pan"],
        [["+", "−", "0"], "zoom in, zoom out, all of it"],
        [["Enter"], "choose the cell"],
      ],
    },
    {
      where: "On the heads",
      keys: [
        [["←", "↑", "↓", "→"], "the next head in that direction"],
        [["Home", "End"], "the first head, the last"],
        [["Enter"], "open the head"],
      ],
    },
    {
      where: "On tokens and boxes",
      keys: [
        [["Tab"], "go to the next"],
        [["←", "→"], "the token before, the next"],
        [["Enter"], "choose, or go in"],
      ],
    },
  ] as { where: string; keys: [string[], string][] }[],
};
