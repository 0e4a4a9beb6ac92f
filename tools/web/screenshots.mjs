// Takes pictures of pages, wide and narrow, light and dark, to look at:
//   node tools/web/screenshots.mjs index.html 01-dot_product.html     (no page named: all of them)
// They go to _build/screenshots/, or to the folder in OUT. A long page is cut into pieces; PIECES=1 takes the first.
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { pages, ROOT, settle, withBook } from "./site.mjs";

const folder = process.env.OUT ?? join(ROOT, "_build", "screenshots");
mkdirSync(folder, { recursive: true });
const PIECE = 1800; // pixels
const most = Number(process.env.PIECES ?? Infinity);
const wanted = process.argv.length > 2 ? process.argv.slice(2) : pages();

await withBook(async (address, browser) => {
  for (const width of [1280, 390]) {
    for (const colorScheme of ["light", "dark"]) {
      const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
      const page = await context.newPage();
      for (const path of wanted) {
        await page.goto(`${address}/${path}`);
        await settle(page);
        const height = await page.evaluate(() => document.documentElement.scrollHeight);
        for (let y = 0, piece = 1; y < height && piece <= most; y += PIECE, piece += 1) {
          const name = `${path.replace(/\.html$/, "").replaceAll("/", "-")}-${width}-${colorScheme}-${piece}.png`;
          const clip = { x: 0, y, width, height: Math.min(PIECE, height - y) };
          await page.screenshot({ path: join(folder, name), fullPage: true, clip });
          console.log(join(folder, name));
        }
      }
      await context.close();
    }
  }
});
