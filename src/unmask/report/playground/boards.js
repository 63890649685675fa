"use strict";
// Boards: the one that is typed into, and one per scheduler that fills during the race.
const Boards = (() => {
  const { make, makeSvg, heat } = Elements;
  const boxes = { 4: [2, 2], 9: [3, 3] };

  // Styles are set through the object model, since the page's policy allows no style attribute.
  function squares(size, label, makeCell) {
    const [boxRows, boxColumns] = boxes[size];
    const cells = [];
    const grid = make("div", { class: "squares", role: "grid", "aria-label": label });
    grid.style.setProperty("--n", size);
    for (let row = 0; row < size; row++) {
      const line = make("div", { class: "line", role: "row" });
      for (let column = 0; column < size; column++) {
        const edges = [
          column === size - 1 ? "row-end" : column % boxColumns === boxColumns - 1 ? "box-end" : "",
          row === size - 1 ? "bottom" : row % boxRows === boxRows - 1 ? "band-end" : "",
        ].filter(Boolean);
        const cell = makeCell(row * size + column);
        cell.dataset.edges = edges.join(" ");
        cell.className = `cell ${cell.dataset.edges}`;
        cells.push(cell);
        line.append(cell);
      }
      grid.append(line);
    }
    return { cells, element: make("div", { class: "board" }, grid) };
  }
  const cellName = (position, size) => `row ${Math.floor(position / size) + 1}, column ${(position % size) + 1}`;

  class Editor {
    constructor(place, changed) {
      this.place = place;
      this.changed = changed;
      this.size = 0;
    }
    set(text) {
      const size = text.length === 16 ? 4 : 9;
      if (size !== this.size) this.resize(size);
      this.inputs.forEach((input, n) => {
        input.value = "123456789".includes(text[n]) ? text[n] : "";
        this.showGiven(n);
      });
      this.mark([]);
    }
    get text() {
      return this.inputs.map(input => input.value || ".").join("");
    }
    mark(cells) {
      this.cells.forEach((cell, n) => cell.classList.toggle("bad", cells.includes(n)));
      this.inputs.forEach((input, n) => input.setAttribute("aria-invalid", String(cells.includes(n))));
    }
    resize(size) {
      this.size = size;
      this.inputs = [];
      const { cells, element } = squares(size, "Puzzle", position => {
        const input = make("input", {
          type: "text",
          inputmode: "numeric",
          autocomplete: "off",
          "aria-label": cellName(position, size),
          tabindex: position ? -1 : 0,
        });
        input.addEventListener("beforeinput", event => this.edit(event, position));
        input.addEventListener("keydown", event => this.moveFocus(event, position));
        input.addEventListener("focus", () => {
          this.inputs.find(one => one.tabIndex === 0).tabIndex = -1;
          input.tabIndex = 0;
        });
        this.inputs.push(input);
        return make("div", { role: "gridcell" }, input);
      });
      this.cells = cells;
      this.place.replaceChildren(element);
    }
    showGiven(position) {
      this.cells[position].classList.toggle("given", this.inputs[position].value !== "");
    }
    // Every change of a cell: keys, a phone's keyboard, and a pasted puzzle.
    edit(event, position) {
      event.preventDefault();
      const given = event.data ?? event.dataTransfer?.getData("text/plain") ?? "";
      if (given.length > 1) return this.changed(given, true);
      if (!event.inputType.startsWith("delete") && !/^[0-9. ]$/.test(given)) return;
      if (Number(given) > this.size) return;
      this.inputs[position].value = /[1-9]/.test(given) ? given : "";
      this.showGiven(position);
      this.mark([]);
      if (given && position + 1 < this.inputs.length) this.inputs[position + 1].focus();
      this.changed(this.text, false);
    }
    moveFocus(event, position) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const column = position % this.size;
      const to = {
        ArrowLeft: column ? position - 1 : -1,
        ArrowRight: column < this.size - 1 ? position + 1 : -1,
        ArrowUp: position - this.size,
        ArrowDown: position + this.size,
        Home: position - column,
        End: position - column + this.size - 1,
      }[event.key];
      if (event.key === "Enter") event.preventDefault();
      if (to === undefined) return;
      event.preventDefault();
      this.inputs[to]?.focus();
    }
  }

  // The board of one scheduler in the race.
  class Lane {
    constructor(scheduler, label, puzzle, size) {
      this.scheduler = scheduler;
      this.label = label;
      this.size = size;
      this.hidden = [...puzzle].filter(digit => digit === "0").length;
      this.count = this.wrong = 0;
      this.firstWrong = this.last = this.verdict = null;
      const { cells, element } = squares(size, `${label}: board`, position => {
        const digit = puzzle[position];
        const given = digit !== "0";
        const name = `${cellName(position, size)}: ${given ? `${digit}, given` : "hidden"}`;
        return make("div", { role: "gridcell", "aria-label": name }, given ? make("span", {}, digit) : "");
      });
      this.cells = cells;
      cells.forEach((cell, n) => cell.classList.toggle("given", puzzle[n] !== "0"));
      this.outcome = make("span", { class: "verdict" });
      this.chart = makeSvg("svg", { class: "chart", viewBox: "0 0 600 100", preserveAspectRatio: "none", "aria-hidden": "true" });
      this.tally = make("span", {}, "");
      const caption = make("div", { class: "chart-caption" }, make("span", {}, "how sure the model was"), this.tally);
      this.element = make(
        "section",
        { class: "pane", "data-scheduler": scheduler, "aria-label": label },
        make("header", {}, make("h3", {}, label), this.outcome),
        element,
        this.chart,
        caption,
      );
      this.showTally();
    }
    showTally() {
      this.tally.textContent = `${this.count} of ${this.hidden}`;
    }
    // Shows a step; returns a sentence for screen readers, if it has the first wrong reveal.
    reveal({ nth, reveals }) {
      return reveals.map((one, k) => this.revealOne(nth + k, one)).join("");
    }
    revealOne(nth, { place: position, text: digit, p, right }) {
      const cell = this.cells[position];
      const share = nth / Math.max(1, this.hidden - 1);
      const first = !right && this.firstWrong === null;
      this.last?.classList.remove("now");
      this.last = cell;
      cell.className = ["cell", cell.dataset.edges, "shown now", right ? "" : "wrong", first ? "first-wrong" : ""].join(" ");
      cell.style.setProperty("--heat", heat(share));
      cell.replaceChildren(make("span", {}, digit), make("span", { class: "nth", "aria-hidden": "true" }, String(nth + 1)));
      cell.setAttribute("aria-label", `${cellName(position, this.size)}: ${digit}, reveal ${nth + 1}${right ? "" : ", wrong"}`);
      const wide = 600 / this.hidden;
      const height = Math.max(2, 80 * p);
      this.chart.append(
        makeSvg("rect", { x: (nth + 0.08) * wide, width: wide * 0.84, y: 100 - height, height, fill: heat(share) }),
      );
      if (!right) {
        const x = (nth + 0.5) * wide;
        this.chart.append(makeSvg("path", { class: "cross", d: `M${x - 4} ${90 - height}l8 8m0 -8l-8 8` }));
      }
      this.count = nth + 1;
      this.wrong += right ? 0 : 1;
      this.showTally();
      if (!first) return "";
      this.firstWrong = nth;
      this.outcome.className = "verdict bad";
      this.outcome.textContent = `✗ wrong since reveal ${nth + 1}`;
      return `${this.label}: first wrong reveal, number ${nth + 1}, ${digit} at ${cellName(position, this.size)}.`;
    }
    finish(verdict) {
      this.verdict = verdict;
      this.last?.classList.remove("now");
      this.outcome.className = `verdict ${verdict.solved ? "good" : "bad"}`;
      this.outcome.textContent = verdict.solved ? "✓ solved" : `✗ ${verdict.wrong} wrong, the first at reveal ${verdict.first_wrong + 1}`;
      this.tally.textContent = `${verdict.calls} calls · log p ${verdict.logp.toFixed(2).replace("-", "−")}`;
      return `${this.label}: ${verdict.solved ? "solved" : `${verdict.wrong} wrong`}.`;
    }
  }
  return { Editor, Lane };
})();
