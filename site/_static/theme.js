/* The live page follows the theme that is chosen on the site. On disk neither page may read the other: it is told. */
document.addEventListener("DOMContentLoaded", () => {
  const frame = document.querySelector("iframe.live");
  if (!frame) return;
  const machine = matchMedia("(prefers-color-scheme: dark)");
  const tell = () => {
    const chosen = document.body.dataset.theme;
    const theme = chosen === "light" || chosen === "dark" ? chosen : machine.matches ? "dark" : "light";
    frame.contentWindow.postMessage({ theme }, "*");
  };
  frame.addEventListener("load", tell);
  machine.addEventListener("change", tell);
  new MutationObserver(tell).observe(document.body, { attributeFilter: ["data-theme"] });
  tell();
});
