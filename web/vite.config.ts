import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

import { inline } from "./inline.ts";

/** Two builds into one folder: the explorer in parts, and (`--mode page`) the saved page as one file. */
export default defineConfig(({ mode }) => ({
  base: "./",
  plugins: [svelte(), ...(mode === "page" ? [inline()] : [])],
  build: {
    outDir: "../clearhead/serve/static",
    emptyOutDir: mode !== "page",
    target: "es2023",
    assetsInlineLimit: 0,
    modulePreload: mode === "page" ? false : { polyfill: false },
    cssCodeSplit: false,
    rolldownOptions: {
      input: mode === "page" ? "page.html" : "index.html",
      output: mode === "page" ? { codeSplitting: false } : {},
    },
  },
  resolve: mode === "test" ? { conditions: ["browser"] } : {},
  test: { environment: "./vitest.client.ts", include: ["src/**/*.test.ts"] },
}));
