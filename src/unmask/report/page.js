"use strict";
// The report's page: its theme, and the cases that the viewer in the frame shows.
(() => {
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const frame = document.getElementById("viewer");
  const cases = [...document.querySelectorAll(".case")];
  const { matches: reducedMotion } = matchMedia("(prefers-reduced-motion: reduce)");

  function isDark() {
    return root.dataset.theme === "dark" || (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  }
  function labelTheme() {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-pressed", String(isDark()));
  }
  // The frame has no origin of its own to name: what is sent is public.
  function send(message) {
    frame?.contentWindow.postMessage(message, "*");
  }
  function markCase(chosen) {
    for (const one of cases) one.setAttribute("aria-current", String(one === chosen));
  }
  function showCase(chosen) {
    send({ show: Number(chosen.dataset.case) });
    markCase(chosen);
    frame.scrollIntoView({ block: "start", behavior: reducedMotion ? "auto" : "smooth" });
  }

  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    labelTheme();
    send({ theme: root.dataset.theme });
  });
  for (const one of cases) one.addEventListener("click", () => showCase(one));
  for (const link of document.querySelectorAll(".watch"))
    link.addEventListener("click", event => {
      event.preventDefault();
      showCase(cases.find(one => one.dataset.case === link.dataset.case));
    });
  // The theme may be chosen before the viewer has loaded.
  frame?.addEventListener("load", () => {
    if (root.dataset.theme) send({ theme: root.dataset.theme });
  });
  // The viewer reports its height, and the frame takes it: the page scrolls, not the frame.
  addEventListener("message", event => {
    const height = event.data?.unmaskHeight;
    if (frame && event.source === frame.contentWindow && Number.isFinite(height))
      frame.style.height = `${Math.min(6000, Math.max(200, height + 8))}px`;
  });
  labelTheme();
  if (cases.length) markCase(cases[0]);
  root.dataset.ready = "1";
})();
