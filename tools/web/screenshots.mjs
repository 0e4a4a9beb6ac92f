// Takes pictures of pages, wide and narrow, light and dark, to look at:
//   node tools/web/screenshots.mjs index.html 01-dot_product.html     (no page named: all of them)
// They go to _build/screenshots/, or to the folder in OUT. FULL=0 takes the first screen only.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { pages, ROOT, settle, withBook } from "./site.mjs";

const folder = process.env.OUT ?? join(ROOT, "_build", "screenshots");
mkdirSync(folder, { recursive: true });
const wanted = process.argv.length > 2 ? process.argv.slice(2) : pages();

await withBook(async (address, browser) => {
  for (const width of [1280, 390]) {
    for (const colorScheme of ["light", "dark"]) {
      const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
      const page = await context.newPage();
      for (const path of wanted) {
        await page.goto(`${address}/${path}`);
        await settle(page);
        const file = join(folder, `${path.replace(/\.html$/, "").replaceAll("/", "-")}-${width}-${colorScheme}.png`);
        await page.screenshot({ path: file, fullPage: process.env.FULL !== "0" });
        console.log(file);
      }
      await context.close();
    }
  }
});
