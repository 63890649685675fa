"use strict";
(() => {
  const root = document.documentElement, theme = document.getElementById("theme"), frame = document.getElementById("viewer");
  const dark = () => root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const label = () => { theme.textContent = dark() ? "Light" : "Dark"; theme.setAttribute("aria-pressed", String(dark())); };
  const tell = message => frame && frame.contentWindow.postMessage(message, "*");
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; label(); tell({ theme: root.dataset.theme }); });
  label();
  const cases = [...document.querySelectorAll(".case")];
  const mark = chosen => cases.forEach(one => one.setAttribute("aria-current", String(one === chosen)));
  cases.forEach(one => one.addEventListener("click", () => {
    tell({ show: Number(one.dataset.case) });
    mark(one);
    frame.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  }));
  if (cases.length) mark(cases[0]);
  for (const link of document.querySelectorAll(".watch"))
    link.addEventListener("click", event => { event.preventDefault(); cases.find(one => one.dataset.case === link.dataset.case).click(); });
  // What was chosen before the viewer was there to hear it.
  frame?.addEventListener("load", () => { if (root.dataset.theme) tell({ theme: root.dataset.theme }); });
  addEventListener("message", event => { if (frame && event.source === frame.contentWindow && Number.isFinite(event.data.unmaskHeight)) frame.style.height = `${Math.min(6000, Math.max(200, event.data.unmaskHeight + 8))}px`; });
  root.dataset.ready = "1";
})();
