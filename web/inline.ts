import { readFileSync } from "node:fs";

import type { Plugin, Rolldown } from "vite";

const ICON = new URL("../site/_static/favicon.svg", import.meta.url);

/** Writes the icon of the documentation into each page: one file, also where a page is saved alone. */
export function icon(): Plugin {
  const data = encodeURIComponent(readFileSync(ICON, "utf8").replace(/\s+/g, " "));
  return {
    name: "icon",
    transformIndexHtml: (html) =>
      html.replace('href="data:,"', `type="image/svg+xml" href="data:image/svg+xml,${data}"`),
  };
}

/** Writes scripts and styles into the page that asks for them, so that one file is the whole page. */
export function inline(): Plugin {
  return {
    name: "inline",
    enforce: "post",
    generateBundle: {
      order: "post",
      handler(_, bundle) {
        for (const page of Object.values(bundle)) {
          if (page.type !== "asset" || !page.fileName.endsWith(".html")) continue;
          page.source = styles(scripts(String(page.source), bundle), bundle);
        }
      },
    },
  };
}

function scripts(html: string, bundle: Rolldown.OutputBundle): string {
  return html.replace(/<script[^>]*src="\.\/([^"]+)"[^>]*><\/script>/g, (_, name: string) => {
    const code = take(name, bundle).replace(/<\/script/g, "<\\/script");
    return `<script type="module">${code}</script>`;
  });
}

function styles(html: string, bundle: Rolldown.OutputBundle): string {
  return html.replace(
    /<link[^>]*rel="stylesheet"[^>]*href="\.\/([^"]+)"[^>]*>/g,
    (_, name: string) => `<style>${take(name, bundle)}</style>`,
  );
}

/** The text of a file of the bundle, which then is no file any more. */
function take(name: string, bundle: Rolldown.OutputBundle): string {
  const part = bundle[name];
  delete bundle[name];
  return part.type === "chunk" ? part.code : String(part.source);
}
