/* Scores of search results: the guide comes before the API, and the API before logs and decisions. The numbers besides
   `score` are Sphinx's own. */
var Scorer = {
  score: ([page, , anchor, , score]) => {
    if (/^docs\/(decisions|releases)\/|^benchmarks\/|^tests\/|^CHANGELOG/.test(page)) return score - 40;
    return score + (page.startsWith("docs/") ? 20 : 0) + (anchor ? 0 : 1);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
