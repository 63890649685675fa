"use strict";
// The tab of text races: what to decode, and by which decodings.
const TextTab = (() => {
  const { make } = Elements;
  const $ = id => document.getElementById(id);

  return function (choices, showProblem) {
    const { denoisers, options, mostLanes, settings } = choices;
    const chosen = () => denoisers.find(one => one.name === $("model").value);
    const labelOf = name => (name === `sas-${$("model").value}` ? "learned order (SAS)" : name.replaceAll("_", " "));
    const mode = () => document.querySelector("input[name=mode]:checked").value;
    const shownLanes = () => [...$("entries").children];
    const read = element => ({
      scheduler: element.querySelector("select").value,
      options: Object.fromEntries(options.map(option => [option.name, Texts.readOption(option, element.querySelector(`[name=${option.name}]`))]).filter(([, value]) => value !== undefined)),
    });

    function showEntries(entries, open = -1) {
      $("entries").replaceChildren(...entries.map((entry, n) => makeEntry(entry, n, entries.length, n === open)));
      $("add-entry").disabled = entries.length >= mostLanes;
    }
    function makeEntry({ scheduler, options: given }, n, count, open) {
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
        make("details", open ? { open: "" } : {}, summary, make("div", { class: "options" }, ...options.map(option => Texts.optionField(option, given[option.name])))),
      );
      const describe = () => {
        const set = Object.entries(read(element).options).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
        summary.textContent = set.join(", ") || "options";
      };
      remove.addEventListener("click", () => showEntries(shownLanes().filter(one => one !== element).map(read)));
      element.addEventListener("input", describe);
      describe();
      return element;
    }
    function showMode() {
      $("length").disabled = mode() === "holes";
      $("hint").textContent = {
        plain: "The model continues this text.",
        chat: "The text goes into the tokenizer’s chat template, as the user’s turn.",
        holes: "<mask> hides a token, <mask:8> eight; everything else stays: prose, JSON, code.",
      }[mode()];
    }
    function showDenoiser() {
      $("text-example").replaceChildren(make("option", { value: "", disabled: "", hidden: "" }, "your own"), ...chosen().examples.map((one, n) => make("option", { value: n }, one.name)));
      chooseExample(0);
    }
    function chooseExample(nth) {
      const { mode: how, text, entries, length } = chosen().examples[nth];
      $("text-example").value = nth;
      $("written").value = text;
      $("length").value = length;
      document.querySelector(`input[name=mode][value=${how}]`).checked = true;
      const learned = chosen().schedulers.filter(name => !["confidence", "margin", "entropy", "left_to_right", "random"].includes(name)).slice(0, 1);
      showEntries([...entries.map(([scheduler, given]) => ({ scheduler, options: given })), ...learned.map(scheduler => ({ scheduler, options: {} }))]);
      showMode();
      showProblem("");
    }
    function own() {
      $("text-example").value = "";
      showProblem("");
    }

    $("model").append(...denoisers.map(one => make("option", { value: one.name }, one.name.length > 40 ? `…${one.name.slice(-38)}` : one.name)));
    for (const option of options.filter(one => one.type === "spec")) document.body.append(make("datalist", { id: `choices-${option.name}` }, ...option.enum.map(value => make("option", { value }))));
    $("model").addEventListener("change", showDenoiser);
    $("text-example").addEventListener("change", () => chooseExample(Number($("text-example").value)));
    $("written").addEventListener("input", own);
    for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => (showMode(), own()));
    $("add-entry").addEventListener("click", () => {
      const entries = shownLanes().map(read);
      const used = new Set(entries.filter(entry => !Object.keys(entry.options).length).map(entry => entry.scheduler));
      const free = chosen().schedulers.find(name => !used.has(name)) ?? "confidence";
      showEntries([...entries, { scheduler: free, options: {} }]);
    });
    showDenoiser();

    let request = null;
    return {
      path: "/text",
      form: $("text-setup"),
      again: () => $("written").focus(),
      body() {
        const number = id => Number($(id).value || 0);
        request = { denoiser: $("model").value, mode: mode(), text: $("written").value, length: number("length"), seed: number("seed"), entries: shownLanes().map(read) };
        return request;
      },
      begin: start => start.lanes.map((_, n) => new Texts.Lane(n, start, request, settings)),
      result(lanes) {
        const different = new Set(lanes.map(lane => lane.verdict.text)).size;
        if (lanes.length === 1) return "";
        if (different === 1) return "All give the same text.";
        const best = lanes.reduce((one, other) => ((other.verdict.logp ?? -Infinity) > (one.verdict.logp ?? -Infinity) ? other : one));
        return `${different} different texts; the model finds that of ${best.label} most probable along its path.`;
      },
    };
  };
})();
