// The built book, served on this machine, and a browser to open it with.
import { createReadStream, existsSync, readdirSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));
export const HTML = join(ROOT, "_build", "html");

const TYPES = {
  ".css": "text/css", ".html": "text/html; charset=utf-8", ".ico": "image/x-icon", ".js": "text/javascript",
  ".json": "application/json", ".mjs": "text/javascript", ".png": "image/png", ".svg": "image/svg+xml",
  ".wasm": "application/wasm", ".woff": "font/woff", ".woff2": "font/woff2",
};

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];

const CHROMIUM = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome",
  "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"];

/** Every page of the book, as a path from its root. */
export function pages(folder = HTML) {
  if (!existsSync(join(HTML, "index.html"))) throw new Error("There is no book in _build/html yet: make book");
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return entry.name.startsWith("_") ? [] : pages(path);
    return entry.name.endsWith(".html") ? [relative(HTML, path)] : [];
  }).sort();
}

/** Serve the book on a free port of 127.0.0.1. */
export async function serve() {
  const server = createServer((request, response) => {
    const path = normalize(decodeURIComponent(new URL(request.url, "http://local").pathname));
    const file = join(HTML, path.endsWith("/") ? `${path}index.html` : path);
    if (!file.startsWith(HTML) || !existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404).end();
      return;
    }
    response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream" });
    createReadStream(file).pipe(response);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { address: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

/** Headless Chromium with an empty profile. */
export async function openBrowser() {
  const executablePath = CHROMIUM.find((path) => path && existsSync(path));
  if (!executablePath) throw new Error("No Chromium found; name one: CHROMIUM=/path/to/chromium");
  return chromium.launch({ executablePath, args: FLAGS });
}

/** Call `job` with the book's address and a browser, and clean up whatever happens. */
export async function withBook(job) {
  const site = await serve();
  const browser = await openBrowser();
  try {
    return await job(site.address, browser);
  } finally {
    await browser.close();
    site.close();
  }
}

/** Wait until a page has drawn its formulas. */
export async function settle(page) {
  await page.waitForLoadState("networkidle");
  await page.evaluate(() => window.MathJax?.startup?.promise);
}
