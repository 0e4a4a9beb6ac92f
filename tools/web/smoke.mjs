// Opens every page of the built book and fails on an error in the console, an exception, a formula that
// MathJax could not read, an image that did not load, or a request to any other host.
import { pages, settle, withBook } from "./site.mjs";

const start = Date.now();
const failures = await withBook(async (address, browser) => {
  const context = await browser.newContext();
  const failed = [];
  for (const path of pages()) {
    const problems = await openPage(context, address, path);
    console.log(`${problems.length ? "FAILED" : "ok    "} ${path}`);
    problems.forEach((problem) => console.log(`       ${problem}`));
    failed.push(problems.length > 0);
  }
  return failed;
});
const failed = failures.filter(Boolean).length;
console.log(`${((Date.now() - start) / 1000).toFixed(1)} s`);
console.log(`${failures.length - failed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;

async function openPage(context, address, path) {
  const page = await context.newPage();
  const problems = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(`console ${message.type()}: ${message.text()}`);
  });
  page.on("pageerror", (error) => problems.push(`exception: ${error.message}`));
  page.on("response", (response) => {
    if (response.status() >= 400) problems.push(`${response.status()}: ${response.url()}`);
  });
  await page.route(/.*/, (route) => {
    const url = route.request().url();
    if (url.startsWith(address) || url.startsWith("data:") || url.startsWith("blob:")) return route.continue();
    problems.push(`asks another host: ${url}`);
    return route.abort();
  });
  await page.goto(`${address}/${path}`);
  await settle(page);
  problems.push(...(await page.evaluate(unreadable)));
  await page.close();
  return problems;
}

/** Runs in the page. */
function unreadable() {
  const formulas = [...document.querySelectorAll("mjx-merror, mjx-container [data-mjx-error]")]
    .map((node) => `formula: ${node.getAttribute("data-mjx-error") ?? node.textContent}`);
  const raw = [...document.querySelectorAll(".math")].filter((node) => !node.querySelector("mjx-container"))
    .map((node) => `formula not drawn: ${node.textContent.slice(0, 60)}`);
  const images = [...document.images].filter((image) => image.complete && image.naturalWidth === 0)
    .map((image) => `image not loaded: ${image.src}`);
  return [...formulas, ...raw, ...images];
}
