"use strict";
// Text: the lane of one decoding, the form of its options, and the lines that do the same elsewhere.
const Texts = (() => {
  const { make, makeSvg, percent, heat } = Elements;
  const minus = (number, digits) => number.toFixed(digits).replace("-", "−");
  // White space by itself would not be seen.
  const visible = text => (text.trim() ? text : text.replaceAll(" ", "␣").replaceAll("\t", "⇥")).replaceAll("\n", "⏎") || "∅";

  const shorten = name => (name.length > 40 ? `…${name.slice(-38)}` : name);

  // The shipped policy of a denoiser by the name that the form gives it, with the options behind it.
  function nameScheduler(name, learned) {
    const rest = name.slice(learned?.length ?? 0);
    return (learned && name.startsWith(learned) && /^($|[ ,])/.test(rest) ? `learned order (SAS)${rest}` : name).replaceAll("_", " ");
  }

  // `lines` do the same as Python and as a command; `drawn` adds a picture of what is revealed and guessed.
  class Lane {
    constructor(number, { lanes, tokens, begin, learned }, lines, drawn = false) {
      this.label = nameScheduler(lanes[number], learned);
      this.hidden = tokens.filter(token => token === null).length;
      this.count = 0;
      this.verdict = null;
      this.last = [];
      this.words = make("div", { class: "words", role: "list", "aria-label": `${this.label}: text` });
      this.cells = tokens.map((text, place) => {
        const cell = make("span", { role: "listitem", tabindex: -1 });
        this.words.append(cell, make("span", { class: "turn", hidden: "" }));
        if (text === null) this.hide(cell);
        else if (drawn && !text) cell.hidden = true; // a special token
        else this.give(cell, text, place < begin - 60);
        cell.addEventListener("pointerenter", () => this.explain(cell));
        cell.addEventListener("focus", () => this.explain(cell));
        cell.addEventListener("keydown", event => this.moveFocus(event, place));
        return cell;
      });
      this.cells.find(cell => !cell.hidden)?.setAttribute("tabindex", 0);
      this.outcome = make("span", { class: "verdict" });
      this.chart = makeSvg("svg", { class: "chart", viewBox: "0 0 600 100", preserveAspectRatio: "none", "aria-hidden": "true" });
      this.tally = make("span", {}, `0 of ${this.hidden}`);
      this.details = make("div", { class: "details small", "aria-live": "off" }, make("p", { class: "muted" }, "Point at a token, or move to it, for the model’s alternatives."));
      this.lines = make("pre", { class: "lines", tabindex: 0, hidden: "" });
      const copies = ["Python", "command"].map(kind => {
        const button = make("button", { type: "button", class: "quiet" }, `Copy as ${kind}`);
        button.addEventListener("click", () => this.copy(button, kind, lines[kind]));
        return button;
      });
      this.picture = drawn ? new Pictures(this.cells, cell => this.explain(cell)) : null;
      this.judged = make("p", { class: "judged", hidden: "" });
      this.element = make(
        "section",
        { class: "pane", "data-lane": number, "aria-label": this.label },
        make("header", {}, make("h3", {}, this.label), this.outcome),
        this.words,
        this.picture?.element ?? null,
        this.judged,
        this.chart,
        make("div", { class: "chart-caption" }, make("span", {}, "how sure the model was"), this.tally),
        this.details,
        make("div", { class: "copies" }, ...copies),
        this.lines,
      );
    }
    give(cell, text, far) {
      cell.className = "token given";
      cell.textContent = visible(text);
      cell.hidden = far; // of a long prompt, its end is shown
      cell.nextElementSibling.hidden = !text.includes("\n");
      cell.setAttribute("aria-label", `${visible(text)}, given`);
      cell.what = { title: `“${visible(text).trim()}” was given.`, others: [] };
    }
    hide(cell) {
      cell.className = "token hidden-now";
      cell.textContent = "▁";
      cell.setAttribute("aria-label", "hidden");
      cell.what = { title: "Hidden.", others: [] };
    }
    // Shows a step.
    reveal({ step, nth, reveals, hidden, picture }) {
      for (const cell of this.last) cell.classList.remove("now");
      for (const place of hidden) this.hide(this.cells[place]);
      this.last = reveals.map(({ place }) => this.cells[place]);
      reveals.forEach(({ place, text, p, others }, k) => {
        const cell = this.cells[place];
        const share = (nth + k) / Math.max(1, this.hidden - 1);
        cell.className = "token shown now";
        cell.textContent = visible(text);
        cell.style.setProperty("--heat", heat(share));
        cell.nextElementSibling.hidden = !text.includes("\n");
        const sure = p === null ? "" : `, with probability ${percent(p)}`;
        cell.setAttribute("aria-label", `${visible(text)}, step ${step + 1}${sure}`);
        cell.what = { title: `“${visible(text).trim()}” at step ${step + 1}${sure}.`, others: p === null ? [] : [[text, p], ...others] };
        const wide = 600 / this.hidden;
        const height = Math.max(2, 80 * (p ?? 0));
        this.chart.append(makeSvg("rect", { x: (nth + k + 0.08) * wide, width: wide * 0.84, y: 100 - height, height, fill: heat(share), "data-step": step }));
      });
      this.count = nth + reveals.length;
      this.tally.textContent = `${this.count} of ${this.hidden}`;
      this.picture?.show(picture, `${this.label}: molecule after step ${step + 1}`);
      return "";
    }
    finish(verdict) {
      this.verdict = verdict;
      const { text, end, logp, calls, steps, decided, judged } = verdict;
      this.picture?.finish();
      if (judged) {
        this.judged.textContent = judged.line;
        this.judged.classList.toggle("bad", !judged.good);
        this.judged.hidden = false;
      }
      for (const cell of this.last) cell.classList.remove("now");
      this.cells.forEach((cell, place) => {
        if (place === end) cell.classList.add("end");
        else if (end !== null && place > end) cell.classList.add("beyond");
        if (cell.classList.contains("hidden-now")) cell.classList.add("never");
      });
      const at = this.chart.querySelector(`rect[data-step="${decided}"]`);
      if (at) {
        const x = Number(at.getAttribute("x"));
        this.chart.append(makeSvg("line", { class: "decided", x1: x, x2: x, y1: 0, y2: 100 }));
      }
      const when = decided >= steps ? "decided at the last step" : `decided at step ${decided + 1} of ${steps}`;
      this.outcome.textContent = when;
      this.outcome.title = "From this step on no best guess changed any more.";
      this.tally.textContent = `${calls} calls · log p ${logp === null ? "unknown" : minus(logp, 2)}`;
      return `${this.label}: ${text}. ${judged ? `${judged.line}. ` : ""}${when}.`;
    }
    explain(cell) {
      const { title, others } = cell.what;
      this.details.replaceChildren(
        make("p", {}, title),
        make(
          "ol",
          { "aria-label": "The model's most probable tokens" },
          ...others.map(([text, p]) => {
            const bar = make("i");
            bar.style.setProperty("--p", p.toFixed(4)); // the page's policy allows no style attribute
            return make("li", {}, make("b", {}, visible(text)), bar, make("span", {}, percent(p)));
          }),
        ),
      );
    }
    moveFocus(event, place) {
      const way = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      if (!way || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const next = this.cells[place + way];
      if (!next || next.hidden) return;
      this.cells[place].tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
    // Also shown, since a page that is not from this machine may not write to the clipboard.
    async copy(button, kind, lines) {
      this.lines.textContent = lines;
      this.lines.hidden = false;
      try {
        await navigator.clipboard.writeText(lines);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Shown below";
      }
      setTimeout(() => (button.textContent = `Copy as ${kind}`), 1500);
    }
  }

  // A field of the form for an option, from its JSON schema. `value` is undefined where it is the default.
  function optionField(option, value) {
    const { name, type, enum: choices, default: standard, optional } = option;
    const label = name.replaceAll("_", " ");
    let input;
    if (type === "boolean") {
      input = make("input", { type: "checkbox" });
      input.checked = value ?? standard;
    } else if (type === "string") {
      input = make("select", {}, ...choices.map(choice => make("option", { value: choice }, choice)));
      input.value = value ?? standard;
    } else {
      const list = type === "spec" ? { list: `choices-${name}`, type: "text" } : { type: "number", step: type === "integer" ? 1 : "any" };
      const bounds = Object.fromEntries(Object.entries({ min: option.minimum, max: option.maximum }).filter(([, bound]) => bound !== undefined));
      input = make("input", { ...list, ...bounds, placeholder: optional ? "none" : String(standard), autocomplete: "off" });
      input.value = value ?? "";
    }
    input.setAttribute("aria-label", label);
    input.title = option.help;
    input.name = name;
    return make("label", { class: "option", title: option.help }, make("span", { class: "caption" }, label), input);
  }
  // The option's value if it differs from the default; undefined if not.
  function readOption({ type, default: standard }, input) {
    if (type === "boolean") return input.checked === standard ? undefined : input.checked;
    const text = input.value.trim();
    if (text === "" || text === String(standard)) return undefined;
    return type === "integer" || type === "number" ? Number(text) : text;
  }

  const python = value => (typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value));
  function asPython({ denoiser, mode, text, length, seed, entries }, number, { dtype, device, tokenizer }) {
    const { scheduler, options } = entries[number];
    const call = mode === "holes" ? "infill" : "generate";
    const given = mode === "chat" ? `[{"role": "user", "content": ${python(text)}}]` : python(text);
    const decoding = Object.entries(options).map(([name, value]) => `${name}=${python(value)}`);
    const weights = [python(denoiser), dtype === "float32" ? "" : `torch.${dtype}`];
    if (device) weights.push(`**device_options(${python(device)})`);
    const rest = [python(scheduler), `Decoding(${decoding.join(", ")})`, mode === "holes" ? "" : `length=${length}`];
    return [
      ...(dtype === "float32" ? [] : ["import torch"]),
      `from unmask import Decoding, ${call}, load_denoiser`,
      ...(device ? ["from unmask.denoisers.placement import device_options"] : []),
      "from unmask.generation.text_canvas import load_tokenizer",
      "",
      `denoiser = load_denoiser(${weights.filter(Boolean).join(", ")})`,
      `tokenizer = load_tokenizer(${python(tokenizer || denoiser)})`,
      `text = ${given}`,
      `done = ${call}(denoiser, tokenizer, [text], ${rest.filter(Boolean).join(", ")}, seeds=[${seed} * 2**32])`,
      "print(done.texts[0])",
    ].join("\n");
  }
  const quote = word => (/^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
  function asCommand({ denoiser, mode, text, length, seed, entries }, number, { dtype, device, tokenizer }) {
    const { scheduler, options } = entries[number];
    const words = ["unmask", "generate", "--denoiser", denoiser, "--prompt", text];
    words.push(...(mode === "holes" ? ["--infill"] : ["--length", String(length)]), ...(mode === "chat" ? ["--chat"] : []));
    words.push("--scheduler", scheduler);
    for (const [name, value] of Object.entries(options)) {
      const option = name.replaceAll("_", "-");
      words.push(...(typeof value === "boolean" ? [`--${value ? "" : "no-"}${option}`] : [`--${option}`, String(value)]));
    }
    if (seed) words.push("--seed", String(seed));
    for (const [name, value] of Object.entries({ tokenizer, dtype, device })) if (value && value !== "float32") words.push(`--${name}`, value);
    return words.map(quote).join(" ");
  }
  return { Lane, optionField, readOption, asPython, asCommand, nameScheduler, shorten, visible };
})();
