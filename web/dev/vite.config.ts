import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

import { inline } from "../inline.ts";

/** The explorer on the fake source as one file, to open from disk: npm run dev:page -- --outDir FOLDER */
export default defineConfig({
  root: import.meta.dirname,
  base: "./",
  plugins: [svelte({ configFile: "../svelte.config.js" }), inline()],
  build: {
    emptyOutDir: true,
    modulePreload: false,
    cssCodeSplit: false,
    minify: false,
    rolldownOptions: { output: { codeSplitting: false } },
  },
});
