// One switch for the folded code of a page; heights and colours of the explorer's parts. Without a script code unfolds cell by cell.
"use strict";
const page = document.documentElement;
page.classList.add("folded");
addEventListener("DOMContentLoaded", () => {
  const button = document.querySelector("button.show-code");
  const cells = document.querySelectorAll(".cell details.hide");
  if (!button || !cells.length) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const folded = page.classList.toggle("folded");
    button.textContent = folded ? "Show code" : "Hide code";
    for (const cell of cells) cell.open = !folded;
  });
});
const tell = frame => frame.contentWindow.postMessage({ theme: page.dataset.theme }, "*");
addEventListener("message", ({ source, data }) => {
  for (const frame of document.querySelectorAll("iframe.explorer"))
    if (frame.contentWindow === source && data.height) {
      frame.style.height = `${data.height}px`;
      tell(frame);
    }
});
const tellAll = () => document.querySelectorAll("iframe.explorer").forEach(tell);
new MutationObserver(tellAll).observe(page, { attributeFilter: ["data-theme"] });
addEventListener("load", tellAll);  // a part that was ready before this script is asked for its height
