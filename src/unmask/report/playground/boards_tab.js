"use strict";
// The tab of board races: the puzzle, and the schedulers that fill it.
const BoardsTab = (() => {
  const { make } = Elements;
  const $ = id => document.getElementById(id);
  const MOST_READ = 48 * 1024; // only the beginning of a file is sent: its first rows
  const MOST_FILE = 10 * 1024 * 1024;

  return function (choices, showProblem) {
    const labels = Object.fromEntries(choices.schedulers.map(scheduler => [scheduler.name, scheduler.label]));

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
      showProblem("");
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
        showProblem(error instanceof TypeError ? "the playground does not answer: is it still running?" : error.message);
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
      $("add").disabled = schedulers.length >= choices.mostLanes;
    }


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
    chooseExample(0);

    return {
      path: "/race",
      form: $("setup"),
      kind: "of-grid",
      subject: "another puzzle",
      again: random,
      body: () => ({ puzzle: $("text").value, denoiser: $("denoiser").value, schedulers: chosenSchedulers() }),
      mark: cells => editor.mark(cells),
      begin: ({ lanes, puzzle, size }) => lanes.map(scheduler => new Boards.Lane(scheduler, labels[scheduler], puzzle, size)),
      result(lanes) {
        const solved = lanes.filter(lane => lane.verdict.solved).map(lane => lane.label);
        const failed = lanes.filter(lane => !lane.verdict.solved).map(lane => lane.label);
        const list = names => new Intl.ListFormat("en").format(names);
        const solves = names => `${list(names)} ${names.length > 1 ? "solve" : "solves"} it`;
        const fails = names => `${list(names)} ${names.length > 1 ? "fail" : "fails"}`;
        const parts = [solved.length ? solves(solved) : "", failed.length ? fails(failed) : ""].filter(Boolean).join("; ");
        return `${parts[0].toUpperCase()}${parts.slice(1)}.`;
      },
    };
  };
})();
