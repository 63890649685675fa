"use strict";
// The decodings of a race as a form: up to `mostLanes` schedulers, each with the options that differ from their defaults.
const Entries = (() => {
  const { make } = Elements;
  const HEURISTICS = new Set(["confidence", "margin", "entropy", "left_to_right", "random"]);

  return function (place, add, { options, mostLanes }, chosen) {
    const labelOf = name => Texts.nameScheduler(name, chosen().learned);
    const shownLanes = () => [...place.children];
    const readOne = element => ({
      scheduler: element.querySelector("select").value,
      options: Object.fromEntries(options.map(option => [option.name, Texts.readOption(option, element.querySelector(`[name=${option.name}]`))]).filter(([, value]) => value !== undefined)),
    });
    const read = () => shownLanes().map(readOne);

    function show(entries) {
      place.replaceChildren(...entries.map((entry, n) => makeEntry(entry, n, entries.length)));
      add.disabled = entries.length >= mostLanes;
    }
    // Those of an example, and the first learned order that there is.
    function showExample(entries) {
      const learned = chosen().schedulers.filter(name => !HEURISTICS.has(name)).slice(0, 1);
      show([...entries.map(([scheduler, given]) => ({ scheduler, options: given })), ...learned.map(scheduler => ({ scheduler, options: {} }))]);
    }
    function makeEntry({ scheduler, options: given }, n, count) {
      const select = make("select", { "aria-label": `Scheduler of decoding ${n + 1}` });
      select.append(...chosen().schedulers.map(name => make("option", { value: name }, labelOf(name))));
      select.value = scheduler;
      const remove = make("button", { type: "button", "aria-label": `Without decoding ${n + 1}`, title: "Remove" }, "×");
      remove.disabled = count < 2;
      const summary = make("summary", {});
      const element = make(
        "div",
        { class: "decoding", role: "group", "aria-label": `Decoding ${n + 1}` },
        make("div", { class: "entry" }, select, remove),
        make("details", {}, summary, make("div", { class: "options" }, ...options.map(option => Texts.optionField(option, given[option.name])))),
      );
      const describe = () => {
        const set = Object.entries(readOne(element).options).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
        summary.textContent = set.join(", ") || "options";
      };
      remove.addEventListener("click", () => show(shownLanes().filter(one => one !== element).map(readOne)));
      element.addEventListener("input", describe);
      describe();
      return element;
    }
    add.addEventListener("click", () => {
      const entries = read();
      const used = new Set(entries.filter(entry => !Object.keys(entry.options).length).map(entry => entry.scheduler));
      const free = chosen().schedulers.find(name => !used.has(name)) ?? "confidence";
      show([...entries, { scheduler: free, options: {} }]);
    });
    return { read, showExample };
  };
})();
