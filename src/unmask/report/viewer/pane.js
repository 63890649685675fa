"use strict";
// The pane of one trajectory: its board or text, a chart of its reveals, and an explanation of one cell.
const Pane = (() => {
  const { SHAPES, make, makeSvg, percent, heat } = Elements;

  return class {
    // The page passes on.choose(pane, nth), to show another trajectory, on.go(step), and on.drawn: are some answers pictures, too?
    constructor(trace, side, on) {
      this.trace = trace;
      this.side = side;
      this.length = trace.prompt.length;
      this.shown = Array.from({ length: this.length }, () => "");
      this.pointed = this.focused = null;
      this.numbers = Traces.numbersOf(trace);
      this.select = make("select", { "aria-label": side ? "Scheduler on the right" : "Scheduler on the left" });
      this.select.append(...trace.trajectories.map((trajectory, n) => make("option", { value: n }, trajectory.scheduler)));
      if (side) this.select.append(make("option", { value: -1 }, "nothing beside it"));
      this.verdict = make("span", { class: "verdict" });
      this.area = trace.kind === "grid" ? this.makeGrid() : this.makeText();
      this.chart = makeSvg("svg", { class: "chart", viewBox: "0 0 600 100", preserveAspectRatio: "none", "aria-hidden": "true" });
      this.caption = make(
        "div",
        { class: "chart-caption" },
        make("span", {}, "the model's probability of each token when it was revealed"),
      );
      this.picture = make("img", { class: "picture", alt: "", hidden: "" });
      this.undrawn = make("p", { class: "muted", hidden: "" }, "This answer writes nothing that can be drawn.");
      this.drawn = on.drawn;
      this.details = make("div", { class: "details" });
      this.facts = make("p", { class: "facts" });
      this.element = make(
        "section",
        { class: "pane", "data-side": side ? "right" : "left" },
        make("header", {}, this.select, this.verdict),
        this.area,
        this.picture,
        this.undrawn,
        this.chart,
        this.caption,
        this.details,
        this.facts,
      );
      this.select.addEventListener("change", () => on.choose(this, Number(this.select.value)));
      this.chart.addEventListener("click", event => {
        const box = this.chart.getBoundingClientRect();
        on.go(1 + Math.floor(((event.clientX - box.left) / box.width) * this.steps));
      });
    }

    name(position) {
      if (this.trace.kind === "text") return `position ${this.numbers[position]}`;
      const size = this.trace.grid.size;
      return `row ${Math.floor(position / size) + 1}, column ${(position % size) + 1}`;
    }
    label(token) {
      const text = Object.hasOwn(this.trace.labels, token) ? this.trace.labels[token] : `token ${token}`;
      if (text === "") return "∅";
      return text.trim() === ""
        ? text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣")
        : text.replaceAll("\n", "⏎");
    }

    quoted(token) {
      return this.trace.kind === "text" ? `“${this.label(token).trim()}”` : this.label(token);
    }

    makeCell(position, attributes) {
      const cell = make(this.trace.kind === "grid" ? "div" : "span", { ...attributes, tabindex: position ? -1 : 0 });
      cell.addEventListener("pointerenter", () => {
        this.pointed = position;
        this.explain();
      });
      cell.addEventListener("pointerleave", () => {
        this.pointed = null;
        this.explain();
      });
      cell.addEventListener("focus", () => {
        this.takeTabStop(position);
        this.focused = position;
        this.explain();
      });
      cell.addEventListener("blur", () => {
        this.focused = null;
        this.explain();
      });
      return cell;
    }
    makeGrid() {
      const { size, box_rows, box_cols } = this.trace.grid;
      this.cells = [];
      const grid = make("div", { class: "squares", role: "grid", "aria-label": "Board", style: `--n:${size}` });
      for (let row = 0; row < size; row++) {
        const line = make("div", { class: "line", role: "row" });
        for (let column = 0; column < size; column++) {
          const edges = [
            column === size - 1 ? "row-end" : column % box_cols === box_cols - 1 ? "box-end" : "",
            row === size - 1 ? "bottom" : row % box_rows === box_rows - 1 ? "band-end" : "",
          ].filter(Boolean);
          const cell = this.makeCell(row * size + column, { role: "gridcell" });
          cell.dataset.edges = edges.join(" ");
          this.cells.push(cell);
          line.append(cell);
        }
        grid.append(line);
      }
      return make("div", { class: "board" }, grid);
    }
    makeText() {
      const words = make("div", { class: "words", role: "list", "aria-label": "Text" });
      const blocks = Math.max(...this.trace.block);
      this.cells = this.trace.prompt.map((_, position) => {
        const block = this.trace.block[position];
        if (blocks > 0 && block >= 0 && block !== this.trace.block[position - 1])
          words.append(make("span", { class: "block", "aria-hidden": "true" }, `block ${block + 1}`));
        const cell = this.makeCell(position, { role: "listitem" });
        cell.hidden = Traces.isSilent(this.trace, position);
        words.append(cell, make("span", { class: "turn", hidden: "" }));
        return cell;
      });
      if (this.cells[0].hidden) this.takeTabStop(Math.max(0, this.cells.findIndex(cell => !cell.hidden)));
      return words;
    }
    // One cell of the board is in the tab order; arrows move from there.
    takeTabStop(position) {
      this.cells.find(cell => cell.tabIndex === 0)?.setAttribute("tabindex", -1);
      this.cells[position].setAttribute("tabindex", 0);
    }
    moveFocus(key, from) {
      const width = this.trace.kind === "grid" ? this.trace.grid.size : 1;
      const column = from % width;
      const to = {
        ArrowLeft: column || width === 1 ? from - 1 : -1,
        ArrowRight: column < width - 1 || width === 1 ? from + 1 : -1,
        ArrowUp: from - width,
        ArrowDown: from + width,
      }[key];
      if (to >= 0 && to < this.length) this.cells[to].focus();
    }

    async show(nth) {
      const trajectory = this.trace.trajectories[nth];
      this.trajectory = trajectory;
      this.select.value = nth;
      this.steps = Traces.stepsOf(this.trajectory);
      this.indexReveals(trajectory);
      this.others = Object.entries(trajectory.others).map(([name, choice]) => {
        const other = this.trace.trajectories.findIndex(one => one.scheduler === name);
        return { name, choice, shape: SHAPES[other % SHAPES.length] ?? "◇" };
      });
      this.showVerdict(trajectory);
      this.area.firstElementChild
        ?.closest("[role]")
        ?.setAttribute("aria-label", `${trajectory.scheduler}: ${this.trace.kind === "grid" ? "board" : "text"}`);
      // A line ends where the finished text has its end, from the first step on: nothing jumps.
      if (this.trace.kind === "text")
        this.cells.forEach((cell, position) => {
          cell.nextElementSibling.hidden = !(this.trace.labels[trajectory.tokens[position]] ?? "").includes("\n");
        });
      trajectory.unpacked ??= await Traces.candidates(this.trace, trajectory);
      if (this.trajectory !== trajectory) return; // another trajectory was chosen meanwhile
      this.candidates = trajectory.unpacked;
      this.shown.fill("");
      this.drawChart();
    }
    // What stands at each position from which step to which, the positions of each step, and which of them are wrong.
    indexReveals({ order, step, logp, tokens, first_wrong: firstWrong, taken_back: taken }) {
      const { target } = this.trace;
      const perStep = () => Array.from({ length: this.steps }, () => []);
      const gone = Array.from({ length: this.length }, () => []);
      [this.reveals, this.takenBack, this.chances] = [perStep(), perStep(), perStep()];
      for (const [when, position, token] of taken) {
        this.takenBack[when]?.push(position);
        gone[position].push({ until: when, token });
      }
      this.stands = Array.from({ length: this.length }, () => []);
      order.forEach((position, k) => {
        const end = gone[position].shift() ?? { until: Infinity, token: tokens[position] };
        this.stands[position].push({ from: step[k], logp: logp[k], ...end });
        this.reveals[step[k]].push(position);
        this.chances[step[k]].push(logp[k]);
      });
      this.isWrong = position => target !== null && this.stepOf[position] >= 0 && this.tokens[position] !== target[position];
      this.firstWrong = firstWrong === null ? -1 : order[firstWrong];
      this.firstWrongStep = this.firstWrong < 0 ? -1 : step[firstWrong];
      this.stand(this.steps);
    }
    // The step, the token and its probability at each position, as they stand after so many steps or will come next.
    stand(steps) {
      const now = this.stands.map(all => all.find(one => steps <= one.until));
      this.stepOf = now.map(one => (one ? one.from : -1));
      this.logp = now.map(one => one?.logp);
      this.tokens = now.map((one, position) => (one ? one.token : this.trajectory.tokens[position]));
    }
    showVerdict({ order, tokens, total_logp: logp, denoiser_calls: calls, taken_back: taken }) {
      const { target } = this.trace;
      const wrong = [...new Set(order)].filter(this.isWrong).length;
      const right = target !== null && tokens.every((token, position) => token === target[position]);
      const verdict = right ? "✓ all right" : `✗ ${wrong} wrong, the first at step ${this.firstWrongStep + 1}`;
      this.verdict.className = `verdict ${target === null ? "" : right ? "good" : "bad"}`;
      this.verdict.textContent = target === null ? "" : verdict;
      this.facts.textContent = [
        logp === null
          ? `${taken.length} tokens taken back: no log p of an order`
          : `log p of this answer ${logp.toFixed(2).replace("-", "−")}`,
        `${order.length} reveals in ${this.steps} steps`,
        `${calls} denoiser calls`,
      ].join(" · ");
    }
    drawChart() {
      const wide = 600 / Math.max(1, this.steps);
      this.chart.replaceChildren();
      this.bars = this.reveals.map((positions, step) => {
        const group = makeSvg("g", {});
        const p = positions.length ? Math.exp(this.chances[step].reduce((sum, logp) => sum + logp, 0) / positions.length) : 0;
        const height = Math.max(2, 80 * p);
        group.append(
          makeSvg("rect", {
            x: step * wide + wide * 0.08,
            width: wide * 0.84,
            y: 100 - height,
            height,
            fill: heat(step / Math.max(1, this.steps - 1)),
          }),
        );
        if (positions.some(this.isWrong)) {
          const x = (step + 0.5) * wide,
            r = Math.min(5, Math.max(2.5, wide / 2.4));
          group.append(makeSvg("path", { class: "cross", d: `M${x - r} ${90 - height}l${2 * r} 8m0 -8l${-2 * r} 8` }));
        }
        this.chart.append(group);
        return group;
      });
      this.cursor = makeSvg("line", { y1: 100, y2: 104 });
      this.chart.append(this.cursor);
    }

    // Only cells that look different are touched, so that a long text stays fast.
    draw(step) {
      this.step = Math.min(step, this.steps);
      this.stand(this.step);
      const decision = Math.max(0, this.step - 1),
        end = this.step >= this.steps;
      const marks = new Map();
      if (this.step > 0)
        for (const { choice, shape } of this.others) {
          const position = choice[decision];
          if (!this.reveals[decision].includes(position)) marks.set(position, (marks.get(position) ?? "") + shape);
        }
      for (let position = 0; position < this.length; position++)
        this.drawCell(position, decision, end, marks.get(position) ?? "");
      this.bars.forEach((bar, n) => bar.classList.toggle("later", n >= this.step));
      for (const side of ["x1", "x2"]) this.cursor.setAttribute(side, (600 * (this.step - 0.5)) / Math.max(1, this.steps));
      this.cursor.style.display = this.step ? "" : "none";
      this.drawPicture();
      this.explain();
    }
    // The drawing without what is still hidden. As an image it can neither run anything nor load anything.
    drawPicture() {
      const { drawing, scheduler } = this.trajectory;
      this.picture.hidden = !drawing;
      this.undrawn.hidden = Boolean(drawing) || !this.drawn;
      if (!drawing) return;
      const later = new Set(drawing.parts.filter(([position]) => this.stepOf[position] >= this.step).map(([, atom]) => `atom-${atom}`));
      const svg = drawing.svg.replaceAll(/<\w+ [^>]*class='([^']*)'[^>]*\/>\s*/g, (element, classes) =>
        classes.split(" ").some(one => later.has(one)) ? "" : element,
      );
      this.picture.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
      this.picture.alt = `${scheduler}: the molecule after ${this.step} of ${this.steps} steps`;
    }
    drawCell(position, decision, end, marks) {
      const look = this.lookOf(position, decision, end);
      const classes = this.classesOf(position, look, end);
      const guess = look.best ? `${look.best.token} ${look.best.p.toFixed(2)}` : "";
      const key = `${classes}|${look.when}|${this.tokens[position]}|${guess}|${marks}`;
      if (this.shown[position] === key) return;
      this.shown[position] = key;
      const cell = this.cells[position];
      cell.className = classes;
      if (look.shown) cell.style.setProperty("--heat", heat(look.when / Math.max(1, this.steps - 1)));
      else cell.style.removeProperty("--heat");
      cell.replaceChildren(...this.contentOf(position, look, end));
      if (marks) cell.append(make("span", { class: "marks", "aria-hidden": "true" }, marks));
      cell.setAttribute("aria-label", this.describeCell(position, look));
    }
    // What there is to show at a position: given, revealed at the step `when`, never revealed, or a candidate's best guess.
    lookOf(position, decision, end) {
      const when = this.stepOf[position];
      const given = this.trace.prompt[position] !== this.trace.mask_id;
      const shown = when >= 0 && when < this.step;
      const open = !given && !shown && !end && this.candidates;
      const place = open ? this.candidates.place(decision, position) : -1;
      return { when, given, shown, never: !given && when < 0, best: place >= 0 ? this.candidates.best(place) : null };
    }
    classesOf(position, { when, given, shown, never, best }, end) {
      const { kind, end_ids: ends } = this.trace;
      const finished = given || shown || end;
      return [
        kind === "grid" ? `cell ${this.cells[position].dataset.edges}`.trim() : "token",
        given ? "given" : shown ? "shown" : never && end ? "never" : "hidden-now",
        best && "candidate",
        shown && when === this.step - 1 && "now",
        this.takenBack[this.step - 1]?.includes(position) && "taken-back",
        shown && this.isWrong(position) && "wrong",
        shown && position === this.firstWrong && "first-wrong",
        kind === "text" && finished && ends.includes(this.tokens[position]) && "end",
      ]
        .filter(Boolean)
        .join(" ");
    }
    contentOf(position, { when, given, shown, never, best }, end) {
      const { kind, mask_id: mask } = this.trace;
      const token = this.tokens[position];
      const inside = [];
      // A text keeps the width of its tokens from the first step on; a board shows guesses instead.
      if (kind === "text") inside.push(this.label(never && !end ? mask : token));
      else if (given || shown || (never && end)) inside.push(make("span", {}, this.label(token)));
      else if (best) inside.push(make("span", { class: "guess" }, this.label(best.token)));
      if (kind === "grid" && shown) inside.push(make("span", { class: "nth", "aria-hidden": "true" }, String(when + 1)));
      if (best) inside.push(make("span", { class: "sure", style: `--p:${best.p.toFixed(3)}` }));
      return inside;
    }
    describeCell(position, { given, shown, best }) {
      const place = this.name(position),
        token = this.label(this.tokens[position]);
      if (given) return `${place}: ${token}, given`;
      if (shown) return `${place}: ${token}, step ${this.stepOf[position] + 1}${this.isWrong(position) ? ", wrong" : ""}`;
      return best ? `${place}: hidden, best guess ${this.label(best.token)}, ${percent(best.p)}` : `${place}: hidden`;
    }

    // The position that the panel explains: the cell pointed at, the focused one, or the decision itself.
    subject() {
      if (this.pointed !== null) return this.pointed;
      if (this.focused !== null) return this.focused;
      if (this.step >= this.steps && this.firstWrong >= 0) return this.firstWrong;
      return this.step > 0 ? (this.reveals[this.step - 1][0] ?? this.takenBack[this.step - 1][0] ?? null) : null;
    }
    explain() {
      if (!this.trajectory) return;
      const position = this.subject();
      if (position === null) return this.explainStart();
      const when = this.stepOf[position];
      const shown = when >= 0 && when < this.step;
      const given = this.trace.prompt[position] !== this.trace.mask_id;
      // A revealed cell is explained in the state that revealed it, a hidden one in the state of this decision.
      const at = shown ? when : Math.max(0, this.step - 1);
      const place = this.candidates ? this.candidates.place(at, position) : -1;
      const title = this.name(position);
      const parts = [make("h2", {}, title[0].toUpperCase() + title.slice(1))];
      if (given) parts.push(make("p", {}, `${this.quoted(this.trajectory.tokens[position])} was given.`));
      else if (when < 0) parts.push(make("p", {}, "Not revealed: the answer had ended before it."));
      else if (shown) parts.push(this.explainReveal(position, place));
      else parts.push(this.explainHidden(at, place));
      const gone = this.stands[position].filter(one => one.until < this.step);
      if (gone.length)
        parts.push(make("p", {}, gone.map(one => `${this.quoted(one.token)} was taken back at step ${one.until + 1}.`).join(" ")));
      if (place >= 0 && !given) parts.push(this.listAlternatives(position, place));
      if (shown && this.others.length) parts.push(this.explainOthers(when));
      this.details.replaceChildren(...parts);
    }
    explainStart() {
      const first = this.candidates && this.steps ? `, ${this.candidates.count(0)} candidates` : "";
      this.details.replaceChildren(
        make("h2", {}, "Before the first step"),
        make("p", { class: "muted" }, `${new Set(this.trajectory.order).size} positions are hidden${first}.`),
      );
    }
    explainReveal(position, place) {
      const wrong = this.isWrong(position);
      const kind = position === this.firstWrong ? "The first wrong reveal: " : wrong ? "Wrong: " : "";
      const token = this.quoted(this.tokens[position]);
      const p = percent(Math.exp(this.logp[position]));
      let text = `${kind}${token} at step ${this.stepOf[position] + 1}, with probability ${p}.`;
      if (wrong) {
        const truth = place >= 0 ? this.candidates.truth(place) : null;
        text += ` The truth is ${this.quoted(this.trace.target[position])}${truth === null ? "" : `, which had ${percent(truth)}`}.`;
      }
      return make("p", {}, text);
    }
    explainHidden(at, place) {
      if (place < 0) return make("p", {}, "Hidden, and not a candidate at this step.");
      return make("p", {}, `Hidden; scored ${this.candidates.rank(at, place)} of ${this.candidates.count(at)} candidates.`);
    }
    listAlternatives(position, place) {
      const truth = this.trace.target === null ? null : this.trace.target[position];
      const items = this.candidates.alternatives(place).map(({ token, p }) =>
        make(
          "li",
          token === truth ? { class: "truth" } : {},
          make("b", {}, this.label(token)),
          make("i", { style: `--p:${p.toFixed(4)}` }),
          make("span", {}, percent(p)),
        ),
      );
      return make("ol", { "aria-label": "The model's most probable tokens" }, ...items);
    }
    explainOthers(when) {
      const different = this.others
        .filter(({ choice }) => !this.reveals[when].includes(choice[when]))
        .map(({ name, shape, choice }) => `${shape} ${name} ${this.name(choice[when])}`);
      if (!different.length)
        return make("p", { class: "muted" }, "In the same state the others would have revealed the same.");
      const same = this.others.length - different.length;
      const rest = same ? `; ${same} the same` : "";
      return make("p", { class: "muted" }, `In the same state the others would have revealed: ${different.join("; ")}${rest}.`);
    }
    // The step in words, for screen readers.
    announce() {
      const { scheduler } = this.trajectory;
      if (!this.step) return `${scheduler}: nothing revealed yet.`;
      const now = this.reveals[this.step - 1];
      const words = now.slice(0, 3).map(position => {
        const p = percent(Math.exp(this.logp[position]));
        return `${this.name(position)} is ${this.label(this.tokens[position])}, ${p}${this.isWrong(position) ? ", wrong" : ""}`;
      });
      const back = this.takenBack[this.step - 1].length;
      if (back) words.push(`${back} taken back`);
      return `${scheduler}: ${words.join("; ")}${now.length > 3 ? `; and ${now.length - 3} more` : ""}.`;
    }
  };
})();
