// Lights up one policy in every picture while its row, chip or curve is pointed at or has the focus. Where the frontier
// is wider than the screen, begins with ours.
"use strict";
for (const article of document.querySelectorAll("article")) {
  const parts = [...article.querySelectorAll("[data-policy]")];
  const light = (policy) => {
    article.classList.toggle("lit", policy != null);
    for (const part of parts) part.classList.toggle("on", part.dataset.policy === policy);
  };
  const box = article.querySelector(".wide");
  const ours = box?.querySelector(".chosen.ours")?.getBoundingClientRect();
  if (ours) box.scrollLeft = ours.left - box.getBoundingClientRect().left - box.clientWidth / 2;
  for (const part of parts) {
    if (part.tagName === "FIGURE") continue;
    part.addEventListener("pointerenter", () => light(part.dataset.policy));
    part.addEventListener("pointerleave", () => light(null));
    part.addEventListener("focusin", () => light(part.dataset.policy));
    part.addEventListener("focusout", () => light(null));
  }
}
