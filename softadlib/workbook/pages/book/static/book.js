// One switch for the folded code of a page, and the heights of the explorer's parts. Without a script code unfolds cell by cell.
"use strict";
document.documentElement.classList.add("folded");
addEventListener("DOMContentLoaded", () => {
  const button = document.querySelector("button.show-code");
  const cells = document.querySelectorAll(".cell details.hide");
  if (!button || !cells.length) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const folded = document.documentElement.classList.toggle("folded");
    button.textContent = folded ? "Show code" : "Hide code";
    for (const cell of cells) cell.open = !folded;
  });
});
addEventListener("message", ({ source, data }) => {
  for (const frame of document.querySelectorAll("iframe.explorer"))
    if (frame.contentWindow === source && data.height) frame.style.height = `${data.height}px`;
});
