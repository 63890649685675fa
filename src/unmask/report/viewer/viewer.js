"use strict";
// The page around the panes: steps, keys, themes, files, and which trace is shown.
(() => {
  const { SHAPES, make } = Elements;
  const $ = id => document.getElementById(id);
  const state = { traces: [], nth: 0, step: 0, steps: 0, timer: 0, panes: [], right: -1 };

  function showMessage(text) {
    $("message").textContent = text;
    $("message").hidden = !text;
  }

  async function choose(pane, nth) {
    pause();
    if (pane.side) {
      $("panes").classList.toggle("single", nth < 0);
      pane.element.hidden = nth < 0;
    }
    if (nth < 0) {
      offerComparison(pane);
      pane.trajectory = null;
    } else await pane.show(nth);
    updateBounds();
    go(Math.min(state.step, state.steps));
  }
  // Without a right side there is a button to fill it again, in the left pane.
  function offerComparison(pane) {
    const left = state.panes[0];
    const button = make("button", { type: "button" }, "Compare…");
    button.addEventListener("click", () => {
      button.remove();
      choose(pane, Math.max(0, state.right));
    });
    left.element.querySelector("header").append(button);
  }
  const active = () => state.panes.filter(pane => pane.trajectory);
  function updateBounds() {
    state.steps = Math.max(0, ...active().map(pane => pane.steps));
    $("step").max = state.steps;
    $("wrong").hidden = !active().some(pane => pane.firstWrong >= 0);
  }
  function go(step, quiet = false) {
    state.step = Math.max(0, Math.min(state.steps, step));
    $("step").value = state.step;
    $("where").textContent = `step ${state.step} of ${state.steps}`;
    $("step").setAttribute("aria-valuetext", `step ${state.step} of ${state.steps}`);
    active().forEach(pane => pane.draw(state.step));
    if (!quiet)
      $("live").textContent = `Step ${state.step} of ${state.steps}. ${active()
        .map(pane => pane.announce())
        .join(" ")}`;
  }
  function pause() {
    clearTimeout(state.timer);
    if (!state.timer) return;
    state.timer = 0;
    document.body.classList.remove("playing");
    $("play").setAttribute("aria-label", "Play");
    go(state.step);
  }
  function play() {
    if (state.timer) return pause();
    if (!state.steps) return;
    if (state.step >= state.steps) go(0, true);
    document.body.classList.add("playing");
    $("play").setAttribute("aria-label", "Pause");
    const tick = () => {
      if (state.step >= state.steps) return pause();
      go(state.step + 1, true); // a screen reader hears where it stops, not every step
      state.timer = setTimeout(tick, Math.min(450, Math.max(40, 15000 / state.steps)) / Number($("speed").value));
    };
    state.timer = setTimeout(tick, 60);
  }
  function toFirstWrong() {
    const steps = active()
      .filter(pane => pane.firstWrong >= 0)
      .map(pane => pane.firstWrongStep + 1);
    if (steps.length) {
      pause();
      go(Math.min(...steps));
    }
  }

  function showLegend(trace) {
    const key = (look, text) => make("li", {}, look, text);
    const items = [
      key(make("span", { class: "ramp", "aria-hidden": "true" }), "first to last reveal"),
      key(make("span", { class: `cell key given`, "aria-hidden": "true" }), "given"),
      key(make("span", { class: "cell key now", "aria-hidden": "true" }), "revealed at this step"),
    ];
    if (trace.target !== null)
      items.push(key(make("span", { class: "cell key wrong", "aria-hidden": "true" }), "wrong, and “1st ✗” the first one"));
    if (trace.kind === "text" && trace.end_ids.length)
      items.push(key(make("span", { class: "token end", "aria-hidden": "true" }, "end"), "end token"));
    if (trace.trajectories.length > 1)
      items.push(
        make(
          "li",
          { class: "orders" },
          "would have revealed instead:",
          ...trace.trajectories.map((trajectory, n) =>
            make(
              "span",
              {},
              make("span", { class: "shape", "aria-hidden": "true" }, SHAPES[n % SHAPES.length]),
              ` ${trajectory.scheduler}`,
            ),
          ),
        ),
      );
    $("legend").replaceChildren(...items);
  }

  async function show(nth) {
    pause();
    const trace = state.traces[nth];
    state.nth = nth;
    $("problem").value = nth;
    $("about").textContent =
      `${trace.problem} · ${trace.denoiser} · ${trace.decoding} · ${trace.prompt.filter(token => token === trace.mask_id).length} hidden of ${Traces.numbersOf(trace).at(-1)}`;
    const panes = [0, 1].map(
      side =>
        new Pane(trace, side, {
          choose,
          drawn: state.traces.some(one => one.trajectories.some(({ drawing }) => drawing)),
          go: step => {
            pause();
            go(step);
          },
        }),
    );
    state.panes = panes;
    $("panes").className = `panes of-${trace.kind}`;
    $("panes").replaceChildren(...state.panes.map(pane => pane.element));
    showLegend(trace);
    // The most informative pair: one that goes wrong on the left, one that does not on the right.
    const failing = trace.trajectories.findIndex(trajectory => trajectory.first_wrong !== null),
      left = Math.max(0, failing);
    const solving = trace.trajectories.findIndex((trajectory, n) => n !== left && (failing < 0 || trajectory.first_wrong === null));
    const right = trace.trajectories.length < 2 ? -1 : solving >= 0 ? solving : left ? 0 : 1;
    state.right = right;
    if (right < 0) {
      panes[1].element.hidden = true;
      $("panes").classList.add("single");
    }
    await panes[0].show(left);
    if (right >= 0) await panes[1].show(right);
    if (state.panes !== panes) return; // another trace was chosen meanwhile
    updateBounds();
    go(state.steps);
  }
  async function open(traces, start) {
    if (!Array.isArray(traces) || !traces.length) throw new Error("there is no trace in this page");
    state.traces = traces.map(Traces.check);
    $("problem").replaceChildren(...traces.map((trace, n) => make("option", { value: n }, trace.problem)));
    $("problems").hidden = traces.length < 2;
    await show(start >= 0 && start < traces.length ? start : 0);
    for (const part of [".controls", "#panes", "#legend", ".keys"]) document.querySelector(part).hidden = false;
    showMessage("");
  }
  async function attempt(work, doing) {
    try {
      await work();
    } catch (error) {
      const reason =
        typeof DecompressionStream === "undefined"
          ? "this browser cannot unpack it; a browser of 2023 or later can"
          : error.message;
      showMessage(`${doing}: ${reason}.`);
      if (!active().length)
        for (const part of [".controls", "#panes", "#legend", ".keys"]) document.querySelector(part).hidden = true;
    }
  }

  function isDark() {
    return (
      document.documentElement.dataset.theme === "dark" ||
      (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches)
    );
  }
  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    $("theme").textContent = name === "dark" ? "Light" : "Dark";
    $("theme").setAttribute("aria-pressed", String(name === "dark"));
  }

  $("title").textContent = document.title;
  $("step").addEventListener("input", () => {
    pause();
    go(Number($("step").value));
  });
  for (const [id, action] of [
    ["first", () => go(0)],
    ["back", () => go(state.step - 1)],
    ["forward", () => go(state.step + 1)],
    ["last", () => go(state.steps)],
  ])
    $(id).addEventListener("click", () => {
      pause();
      action();
    });
  $("play").addEventListener("click", play);
  $("wrong").addEventListener("click", toFirstWrong);
  $("problem").addEventListener("change", () => attempt(() => show(Number($("problem").value)), "This trace cannot be shown"));
  $("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  if (isDark()) {
    $("theme").textContent = "Light";
    $("theme").setAttribute("aria-pressed", "true");
  }
  $("open").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    const file = $("file").files[0];
    $("file").value = "";
    if (file)
      attempt(async () => {
        let content;
        try {
          content = JSON.parse(await file.text());
        } catch {
          throw new Error("it is not JSON");
        }
        await open([content], 0);
      }, `${file.name} cannot be shown`);
  });
  document.addEventListener("keydown", event => {
    const at = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey || at.matches("select, summary, [type=file]") || !active().length)
      return;
    const pane = state.panes.find(one => one.cells.includes(at));
    const arrow = event.key.startsWith("Arrow");
    if (arrow && at.id === "step") return;
    if (arrow && pane) {
      event.preventDefault();
      return pane.moveFocus(event.key, pane.cells.indexOf(at));
    }
    if (event.key === " " && at.matches("button")) return;
    const action = {
      ArrowLeft: () => go(state.step - 1),
      ArrowRight: () => go(state.step + 1),
      ",": () => go(state.step - 1),
      ".": () => go(state.step + 1),
      Home: () => go(0),
      End: () => go(state.steps),
      f: toFirstWrong,
      F: toFirstWrong,
    }[event.key];
    if (event.key === " ") {
      event.preventDefault();
      play();
    } else if (action) {
      event.preventDefault();
      pause();
      action();
    }
  });
  // Inside a report: the report chooses the trace and the theme, and sizes the frame by this page's height.
  if (window.parent !== window) {
    document.body.classList.add("embedded");
    addEventListener("message", event => {
      if (event.source !== window.parent || !event.data) return;
      if (Number.isInteger(event.data.show) && event.data.show >= 0 && event.data.show < state.traces.length)
        attempt(() => show(event.data.show), "This trace cannot be shown");
      if (["light", "dark"].includes(event.data.theme)) setTheme(event.data.theme);
    });
    new ResizeObserver(() => window.parent.postMessage({ unmaskHeight: document.documentElement.offsetHeight }, "*")).observe(
      document.body,
    );
  }

  attempt(async () => {
    let content;
    try {
      content = JSON.parse($("traces").textContent);
    } catch {
      throw new Error("its JSON is damaged");
    }
    await open(content.traces, content.start);
  }, "The traces of this page cannot be shown").finally(() => {
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  });
})();
