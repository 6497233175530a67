/* Scores of search results: the guide comes before the API, and a page that has the question in its title before others.
   The numbers besides `score` are Sphinx's own. */
const asked = (new URLSearchParams(location.search).get("q") || "").trim().toLowerCase();
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    if (/^benchmarks\//.test(page)) return score - 40;
    const named = asked && title.toLowerCase().includes(asked) ? 10 : 0;
    return score + named + (page.startsWith("docs/") ? 20 : 0) + (anchor ? 0 : 1);
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
