"use strict";
// The page: the choices, the race as its events arrive, and the viewer afterwards.
(() => {
  const { make } = Elements;
  const $ = id => document.getElementById(id);
  const choices = JSON.parse($("choices").textContent);
  const MOST_READ = 48 * 1024; // only the beginning of a file is sent: its first rows
  const MOST_FILE = 10 * 1024 * 1024;
  const state = { running: null, lanes: [], waiting: [], timer: 0, view: null };
  const labels = Object.fromEntries(choices.schedulers.map(scheduler => [scheduler.name, scheduler.label]));

  function showMessage(id, text, cells = []) {
    $(id).textContent = text;
    $(id).hidden = !text;
    if (id === "problem") editor.mark(cells);
  }
  // Upper case at the beginning, unless it is a file's name, and a full stop.
  const sentence = text => (/^\S+\.\w+[ :]/.test(text) ? text[0] : text[0].toUpperCase()) + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

  // The puzzle.
  const bare = text => text.replace(/[\s|+-]/g, "").replaceAll("_", ".");
  const editor = new Boards.Editor($("editor"), (text, pasted) => {
    if (pasted) return write(bare(text));
    $("text").value = text;
    describe(text);
    markChoice(null);
  });
  function describe(text) {
    const given = [...text].filter(character => /[1-9]/.test(character)).length;
    $("clues").textContent = [16, 81].includes(text.length) ? `${given} clues, ${text.length - given} blanks` : `${text.length} characters`;
    showMessage("problem", "");
  }
  function write(text) {
    $("text").value = text;
    read();
  }
  function read() {
    const text = bare($("text").value);
    if (text.length === 81 || text.length === 16) {
      editor.set(text);
      fit(editor.size);
    }
    describe(text);
    markChoice(null);
  }
  function fit(size) {
    if (choices.denoisers.find(one => one.name === $("denoiser").value).size !== size)
      $("denoiser").value = choices.denoisers.find(one => one.size === size).name;
    const levels = Object.entries(choices.difficulties[size]);
    const before = $("difficulty").value;
    $("difficulty").replaceChildren(
      ...levels.map(([name, clues]) => make("option", { value: name }, `${size}×${size}, ${name} (${clues.replace("-", "–")} clues)`)),
    );
    $("difficulty").value = levels.some(([name]) => name === before) ? before : "medium";
  }
  function markChoice(from) {
    if (from !== "example") $("example").value = "";
    if (from !== "rows") for (const button of $("rows").querySelectorAll("button")) button.setAttribute("aria-current", "false");
  }
  function chooseExample(nth) {
    const { puzzle, denoiser, schedulers } = choices.examples[nth];
    $("denoiser").value = denoiser;
    write(puzzle.replaceAll("0", "."));
    $("example").value = nth;
    showSchedulers(schedulers);
  }
  async function post(path, body, type = "application/json") {
    const response = await fetch(path, { method: "POST", headers: { "Content-Type": type }, body });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }
  async function attempt(work) {
    try {
      await work();
    } catch (error) {
      showMessage("problem", sentence(error instanceof TypeError ? "the playground does not answer: is it still running?" : error.message));
    }
  }
  const random = () =>
    attempt(async () => {
      $("random").disabled = true;
      try {
        const request = { size: editor.size, difficulty: $("difficulty").value };
        write((await post("/random", JSON.stringify(request))).puzzle.replaceAll("0", "."));
      } finally {
        $("random").disabled = false;
      }
    });
  const upload = file =>
    attempt(async () => {
      $("rows").hidden = true;
      $("file-name").textContent = file.name;
      if (file.size > MOST_FILE)
        throw new Error(`${file.name} is too large: expected at most 10 MB, got ${(file.size / 1048576).toFixed(1)} MB`);
      let content = new Uint8Array(await file.slice(0, MOST_READ).arrayBuffer());
      if (file.size > MOST_READ) content = content.slice(0, content.lastIndexOf(10) + 1);
      let answer;
      try {
        answer = await post("/file", content, "text/plain");
      } catch (error) {
        throw new Error(`${file.name}: ${error.message}`, { cause: error });
      }
      const { rows, skipped, reason } = answer;
      $("rows").replaceChildren(
        ...rows.map(({ line, puzzle }) => {
          const given = [...puzzle].filter(digit => digit !== "0").length;
          const shown = puzzle.replaceAll("0", ".");
          const button = make("button", { type: "button" }, make("span", {}, `line ${line}`), make("span", {}, `${given} clues`), make("span", {}, shown));
          button.addEventListener("click", () => {
            write(shown);
            markChoice("rows");
            for (const one of $("rows").querySelectorAll("button")) one.setAttribute("aria-current", String(one === button));
          });
          return make("li", {}, button);
        }),
      );
      $("rows").hidden = false;
      $("file-name").textContent = `${file.name}: the first ${rows.length}${skipped ? `; ${skipped} skipped (${reason})` : ""}`;
      $("rows").querySelector("button").click();
    });

  // The schedulers that race.
  const chosenSchedulers = () => [...$("schedulers").querySelectorAll("select")].map(select => select.value);
  function showSchedulers(schedulers) {
    $("schedulers").replaceChildren(
      ...schedulers.map((scheduler, n) => {
        const select = make("select", { "aria-label": `Scheduler ${n + 1}` });
        select.append(...choices.schedulers.map(one => make("option", { value: one.name }, one.label)));
        select.value = scheduler;
        select.addEventListener("change", () => showSchedulers(chosenSchedulers()));
        const remove = make("button", { type: "button", "aria-label": `Without ${labels[scheduler]}`, title: "Remove" }, "×");
        remove.disabled = schedulers.length < 2;
        remove.addEventListener("click", () => showSchedulers(chosenSchedulers().filter((_, m) => m !== n)));
        return make("div", { class: "entry" }, select, remove);
      }),
    );
    $("add").disabled = schedulers.length >= choices.mostSchedulers;
  }

  // The race.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const [, event, data] = part.match(/^event: (\w+)\ndata: (.*)$/);
        yield { event, data: JSON.parse(data) };
      }
    }
  }
  function stop() {
    state.running?.abort();
    state.running = null;
    clearTimeout(state.timer);
    state.timer = 0;
    state.waiting = [];
    $("stop").hidden = true;
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
    showMessage("problem", "");
    showMessage("failed", "");
    const running = (state.running = new AbortController());
    const schedulers = chosenSchedulers();
    const body = JSON.stringify({ puzzle: $("text").value, denoiser: $("denoiser").value, schedulers });
    $("stop").hidden = false;
    $("race").textContent = "Racing…";
    let ended = false;
    try {
      const headers = { "Content-Type": "application/json" };
      const response = await fetch("/race", { method: "POST", headers, body, signal: running.signal });
      if (!response.ok) {
        const { error, cells } = await response.json();
        stop();
        showMessage("problem", sentence(error), cells);
        return $("problem").scrollIntoView({ block: "nearest" });
      }
      for await (const message of events(response.body)) {
        ended ||= message.event === "end" || message.event === "failed";
        state.waiting.push(message);
        if (message.event === "start") begin(state.waiting.shift().data, schedulers);
        else if (!state.timer) drain();
      }
      if (!ended) throw new TypeError("cut off");
    } catch (error) {
      if (error.name === "AbortError" || state.running !== running) return;
      stop();
      showMessage($("track").hidden ? "problem" : "failed", "The playground does not answer: is it still running?");
    }
  }
  function begin({ puzzle, size }, schedulers) {
    state.lanes = schedulers.map(scheduler => new Boards.Lane(scheduler, labels[scheduler], puzzle, size));
    $("lanes").replaceChildren(...state.lanes.map(lane => lane.element));
    $("lanes").className = `panes of-grid ${schedulers.length === 1 ? "single" : ""} ${schedulers.length === 3 ? "lanes-3" : ""}`;
    for (const id of ["result", "after"]) $(id).hidden = true;
    $("frame").replaceChildren();
    $("through").setAttribute("aria-expanded", "false");
    $("track").hidden = false;
    clock(0);
    const smooth = matchMedia("(prefers-reduced-motion: no-preference)").matches;
    $("track").scrollIntoView({ behavior: smooth ? "smooth" : "auto" });
    announce(`${schedulers.map(scheduler => labels[scheduler]).join(", ")}: the race has begun.`);
  }
  // Events are shown a round at a time: one reveal of each scheduler.
  function drain() {
    const delay = Number($("speed").value);
    const spoken = [];
    let rounds = delay ? state.lanes.filter(lane => !lane.verdict).length || 1 : state.waiting.length;
    while (rounds-- > 0 && state.waiting.length) spoken.push(show(state.waiting.shift()));
    if (spoken.some(Boolean)) announce(spoken.filter(Boolean).join(" "));
    state.timer = state.waiting.length ? setTimeout(drain, delay) : 0;
    if (!state.timer && state.running && delay) state.timer = setTimeout(drainIfAny, delay);
  }
  function drainIfAny() {
    state.timer = 0;
    if (state.waiting.length) drain();
  }
  function show({ event, data }) {
    const lane = state.lanes.find(one => one.scheduler === data.scheduler);
    if (event === "reveal") {
      const spoken = lane.reveal(data);
      clock(Math.max(...state.lanes.map(one => one.count)));
      return spoken;
    }
    if (event === "verdict") return lane.finish(data);
    stop();
    if (event === "failed") showMessage("failed", sentence(data.error));
    else end(data.view);
    return "";
  }
  function end(view) {
    state.view = view;
    const solved = state.lanes.filter(lane => lane.verdict.solved).map(lane => lane.label);
    const failed = state.lanes.filter(lane => !lane.verdict.solved).map(lane => lane.label);
    const list = names => new Intl.ListFormat("en").format(names);
    const verb = (names, one, many) => (names.length > 1 ? many : one);
    $("result").textContent = !failed.length
      ? `${sentence(list(solved)).slice(0, -1)} ${verb(solved, "solves", "solve")} it.`
      : !solved.length
        ? `${sentence(list(failed)).slice(0, -1)} ${verb(failed, "fails", "fail")}.`
        : `${sentence(list(solved)).slice(0, -1)} ${verb(solved, "solves", "solve")} it; ${list(failed)} ${verb(failed, "fails", "fail")}.`;
    $("apart").href = view;
    for (const id of ["result", "after"]) $(id).hidden = false;
  }
  function announce(text) {
    $("live").textContent = text;
  }

  // The viewer, in a sandboxed frame without access to this page.
  const frame = () => $("frame").querySelector("iframe");
  const send = message => frame()?.contentWindow.postMessage(message, "*");
  function toggleViewer() {
    if (!state.view || $("after").hidden) return;
    const open = !frame();
    $("through").setAttribute("aria-expanded", String(open));
    if (!open) return $("frame").replaceChildren();
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

  $("example").append(make("option", { value: "", disabled: "", hidden: "" }, "your own"), ...choices.examples.map((one, n) => make("option", { value: n }, one.name)));
  $("denoiser").append(...choices.denoisers.map(one => make("option", { value: one.name }, one.label)));
  $("example").addEventListener("change", () => chooseExample(Number($("example").value)));
  $("denoiser").addEventListener("change", () => {
    const name = $("denoiser").value;
    const { size } = choices.denoisers.find(one => one.name === name);
    if (size !== editor.size) write(choices.examples.find(one => one.puzzle.length === size * size).puzzle.replaceAll("0", "."));
    $("denoiser").value = name;
  });
  $("text").addEventListener("input", read);
  $("random").addEventListener("click", random);
  $("choose").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    const file = $("file").files[0];
    $("file").value = "";
    if (file) upload(file);
  });
  $("add").addEventListener("click", () => {
    const free = choices.schedulers.find(scheduler => !chosenSchedulers().includes(scheduler.name));
    showSchedulers([...chosenSchedulers(), free.name]);
  });
  $("setup").addEventListener("submit", event => {
    event.preventDefault();
    race();
  });
  $("stop").addEventListener("click", stop);
  $("through").addEventListener("click", toggleViewer);
  document.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return race();
    if (event.key === "Escape" && state.running) return stop();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    ({ r: race, n: random, s: toggleViewer })[event.key.toLowerCase()]?.();
  });
  chooseExample(0);
  document.documentElement.dataset.ready = "";
})();
