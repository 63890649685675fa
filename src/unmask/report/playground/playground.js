"use strict";
// The page: tabs, the race as its events arrive, and the viewer afterwards.
(() => {
  const { make } = Elements;
  const $ = id => document.getElementById(id);
  const choices = JSON.parse($("choices").textContent);
  const GONE = "the playground does not answer: is it still running?";
  const state = { running: null, begun: false, lanes: [], view: null };
  // Upper case at the beginning, unless it is a file's name, and a full stop.
  const sentence = text => (/^\S+\.\w+[ :]/.test(text) ? text[0] : text[0].toUpperCase()) + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
  const announce = text => ($("live").textContent = text);

  function showMessage(place, text, cells = []) {
    place.textContent = text && sentence(text);
    place.hidden = !text;
    if (tabs && place !== $("failed")) tab().mark?.(cells);
  }
  const problemOf = form => form.querySelector(".problem");
  const showIn = id => (text, cells) => showMessage(problemOf($(id)), text, cells);

  // Tabs. The address remembers which one is open.
  let tabs = null;
  const { drawn, mostLanes } = choices;
  tabs = {
    text: TextTab({ ...choices.text, mostLanes }, showIn("text-setup")),
    boards: BoardsTab({ ...choices.boards, mostLanes }, showIn("setup")),
    ...(drawn ? { [drawn.name]: DrawnTab({ ...drawn, mostLanes }, showIn("drawn-setup")) } : {}),
  };
  let open = choices.first;
  const tab = () => tabs[open];
  const tabButton = name => $(`tab-${name}`);
  function openTab(name, focus = false) {
    stop();
    open = name;
    for (const [other, { form }] of Object.entries(tabs)) {
      form.hidden = other !== name;
      tabButton(other).setAttribute("aria-selected", String(other === name));
      tabButton(other).tabIndex = other === name ? 0 : -1;
    }
    if (focus) tabButton(name).focus();
    $("track").hidden = true;
    $("again").textContent = tab().subject;
    history.replaceState(null, "", name === choices.first ? location.pathname : `#${name}`);
    state.lanes = [];
    $("race").textContent = "Race";
  }
  for (const name of Object.keys(tabs)) {
    tabButton(name).addEventListener("click", () => openTab(name));
    tabButton(name).addEventListener("keydown", event => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const names = Object.keys(tabs);
      if (way) openTab(names.at((names.indexOf(name) + way) % names.length), true);
    });
  }

  // The race.
  const player = new Stream.Player({
    delay: () => Number($("speed").value),
    lanes: () => state.lanes.filter(lane => !lane.verdict).length,
    show,
    announce,
  });
  function stop() {
    state.running?.abort();
    state.running = null;
    player.clear();
    $("stop").hidden = true;
    $("line").textContent = "";
    $("race").textContent = state.lanes.length ? "Race again" : "Race";
  }
  function clock(reveals) {
    const hidden = state.lanes[0]?.hidden ?? 0;
    $("clock").max = Math.max(1, hidden);
    $("clock").value = reveals;
    $("where").textContent = `reveal ${reveals} of ${hidden}`;
  }
  async function race() {
    stop();
    const { form, path } = tab();
    showMessage(problemOf(form), "");
    showMessage($("failed"), "");
    const running = (state.running = new AbortController());
    state.begun = false;
    const body = JSON.stringify(tab().body());
    $("stop").hidden = false;
    $("race").textContent = "Racing…";
    try {
      const headers = { "Content-Type": "application/json" };
      const response = await fetch(path, { method: "POST", headers, body, signal: running.signal });
      if (!response.ok) {
        const { error, cells } = await response.json();
        stop();
        showMessage(problemOf(form), error, cells);
        return problemOf(form).scrollIntoView({ block: "nearest" });
      }
      await receive(response.body);
    } catch (error) {
      if (error.name === "AbortError" || state.running !== running) return;
      stop();
      showMessage(state.begun ? $("failed") : problemOf(form), error instanceof SyntaxError ? "the playground is overloaded: try again in a while" : GONE);
    }
  }
  async function receive(body) {
    let ended = false;
    for await (const message of Stream.read(body)) {
      ended ||= message.event === "end" || message.event === "failed";
      if (message.event === "waiting") wait(`${message.data.ahead} ${message.data.ahead === 1 ? "race is" : "races are"} before yours`);
      else if (message.event === "loading") wait(`loading ${message.data.denoiser}, ${message.data.seconds} s`);
      else if (message.event === "trying") wait(message.data.text);
      else if (message.event === "start") begin(message.data);
      else player.add(message);
    }
    if (!ended) throw new TypeError("cut off");
  }
  function wait(text) {
    $("line").textContent = text;
  }
  function begin(start) {
    state.lanes = tab().begin(start);
    const count = state.lanes.length;
    state.begun = true;
    wait("");
    $("lanes").replaceChildren(...state.lanes.map(lane => lane.element));
    $("lanes").className = `panes ${tab().kind} ${count === 1 ? "single" : ""} ${count === 3 ? "lanes-3" : ""}`;
    for (const id of ["result", "after"]) $(id).hidden = true;
    $("frame").replaceChildren();
    $("through").setAttribute("aria-expanded", "false");
    $("track").hidden = false;
    clock(0);
    const smooth = matchMedia("(prefers-reduced-motion: no-preference)").matches;
    $("track").scrollIntoView({ behavior: smooth ? "smooth" : "auto" });
    announce(`${state.lanes.map(lane => lane.label).join(", ")}: the race has begun.`);
  }
  function show({ event, data }) {
    const lane = state.lanes[data.lane];
    if (event === "reveal") {
      const spoken = lane.reveal(data);
      clock(Math.max(...state.lanes.map(one => one.count)));
      return spoken;
    }
    if (event === "verdict") return lane.finish(data);
    stop();
    if (event === "failed") showMessage(state.begun ? $("failed") : problemOf(tab().form), data.error);
    else end(data.view);
    return "";
  }
  function end(view) {
    state.view = view;
    const reveals = $("clock").value;
    if (reveals < $("clock").max) $("where").textContent = `reveal ${reveals}, the last`; // an end token ended the rows
    $("clock").value = $("clock").max;
    $("result").textContent = tab().result(state.lanes);
    $("apart").href = view;
    $("result").hidden = !$("result").textContent;
    $("after").hidden = false;
  }

  // The viewer, in a sandboxed frame without access to this page.
  const frame = () => $("frame").querySelector("iframe");
  const send = message => frame()?.contentWindow.postMessage(message, "*");
  function toggleViewer() {
    if (!state.view || $("after").hidden) return;
    const isOpen = !frame();
    $("through").setAttribute("aria-expanded", String(isOpen));
    if (!isOpen) return $("frame").replaceChildren();
    const inside = make("iframe", { title: "The race, step by step", sandbox: "allow-scripts", src: state.view });
    inside.addEventListener("load", () => send({ theme: isDark() ? "dark" : "light" }));
    $("frame").replaceChildren(inside);
  }
  addEventListener("message", event => {
    const height = event.data?.unmaskHeight;
    if (frame() && event.source === frame().contentWindow && Number.isFinite(height))
      frame().style.height = `${Math.min(6000, Math.max(200, height + 8))}px`;
  });

  function isDark() {
    const { theme } = document.documentElement.dataset;
    return theme === "dark" || (!theme && matchMedia("(prefers-color-scheme: dark)").matches);
  }
  function labelTheme() {
    $("theme").textContent = isDark() ? "Light" : "Dark";
    $("theme").setAttribute("aria-pressed", String(isDark()));
  }
  $("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    labelTheme();
    send({ theme: isDark() ? "dark" : "light" });
  });
  labelTheme();

  for (const { form } of Object.values(tabs))
    form.addEventListener("submit", event => {
      event.preventDefault();
      race();
    });
  $("race").addEventListener("click", race);
  $("stop").addEventListener("click", stop);
  $("through").addEventListener("click", toggleViewer);
  document.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return race();
    if (event.key === "Escape" && state.running) return stop();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    const act = { r: race, n: tab().again, s: toggleViewer }[event.key.toLowerCase()];
    if (act) event.preventDefault();
    act?.();
  });
  openTab(Object.hasOwn(tabs, location.hash.slice(1)) ? location.hash.slice(1) : choices.first);
  document.documentElement.dataset.ready = "";
})();
